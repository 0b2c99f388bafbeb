// HTTPS: a client that knows the certificate gets its answer, one that speaks HTTP or knows another gets
// none.
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>

#include "rig.h"

namespace hysparse::tests {
namespace {

namespace fs = std::filesystem;

// A certificate for 127.0.0.1 that signs itself, and its key, as PEM files.
class Certificate {
 public:
  explicit Certificate(const fs::path& folder) : cert(folder / "cert.pem"), key(folder / "key.pem") {
    fs::create_directories(folder);
    EVP_PKEY* pair = EVP_RSA_gen(2048);
    X509* x = X509_new();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, pair);
    X509_NAME* name = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("127.0.0.1"),
                               -1, -1, 0);
    X509_set_issuer_name(x, name);
    X509_sign(x, pair, EVP_sha256());
    FILE* f = std::fopen(cert.c_str(), "w");
    PEM_write_X509(f, x);
    std::fclose(f);
    f = std::fopen(key.c_str(), "w");
    PEM_write_PrivateKey(f, pair, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(f);
    X509_free(x);
    EVP_PKEY_free(pair);
  }
  fs::path cert, key;
};

// What comes back for `request` over TLS; empty where the certificate does not convince.
std::string ask(int port, const fs::path& trusted, const std::string& request) {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_load_verify_locations(context, trusted.c_str(), nullptr);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  Client plain(port);
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, plain.fd());
  std::string out;
  if (SSL_connect(ssl) == 1 && SSL_write(ssl, request.data(), int(request.size())) > 0) {
    char buffer[4096];
    for (int n; (n = SSL_read(ssl, buffer, sizeof buffer)) > 0;) out.append(buffer, size_t(n));
  }
  SSL_free(ssl);
  SSL_CTX_free(context);
  return out;
}

TEST(ServeTls, AnswersThoseWhoKnowTheCertificate) {
  const fs::path folder = fs::path(testing::TempDir()) / "hysparse-tls";
  const Certificate own(folder / "own"), other(folder / "other");
  RigOptions options;
  options.server.http.tls_certificate = own.cert;
  options.server.http.tls_key = own.key;
  ServeRig rig(options);
  rig.say('s', {"a", "b"});
  const std::string body = R"({"prompt": [115], "temperature": 0, "stream": true})";
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  const std::string answer = ask(rig.port(), own.cert, request);
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  EXPECT_NE(answer.find("data: [DONE]"), std::string::npos) << answer;
  EXPECT_EQ(ask(rig.port(), other.cert, request), "");
  Client http(rig.port());
  http.send(request);
  EXPECT_NE(http.receive().status, 200);
  EXPECT_TRUE(ask(rig.port(), own.cert, request).starts_with("HTTP/1.1 200"));
  fs::remove_all(folder);
}

TEST(ServeTls, NamesFilesThatDoNotServe) {
  const fs::path folder = fs::path(testing::TempDir()) / "hysparse-tls-bad";
  const Certificate own(folder / "own"), other(folder / "other");
  for (const auto& [cert, key] : {std::pair{own.cert, folder / "missing.pem"}, {own.cert, other.key}}) {
    RigOptions options;
    options.server.http.tls_certificate = cert;
    options.server.http.tls_key = key;
    ServeRig rig(options);
    EXPECT_THROW(rig.port(), Error) << key;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace hysparse::tests
