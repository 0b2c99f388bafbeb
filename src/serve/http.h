// An HTTP/1.1 server on one thread that never waits: slow, silent or vanished clients cost a few kilobytes
// each and hold up nobody. TLS where certificate files are given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"

namespace hysparse {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8080;                   // 0: one that is free
  std::string tls_certificate, tls_key;  // PEM files; both or none
  int64_t max_body = int64_t(16) << 20;  // bytes, however they are sent
  int64_t max_header = 16 << 10;         // bytes of the request line and all fields
  int64_t max_connections = 1024;
  double header_seconds =
      10;                     // from a request's first byte, or the connection's beginning, to its last field
  double body_seconds = 30;   // from there to the body's end
  double idle_seconds = 60;   // between two requests of a connection
  double write_seconds = 30;  // without a byte taken by the client
};

struct HttpRequest {
  std::string method, path, query;
  std::string authorization, content_type;
  std::string body;
  std::string peer;  // address
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// One request and its answer. All of it belongs to the server's thread: others come by HttpServer::post().
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  HttpRequest request;

  // A whole answer; once, and no stream then.
  virtual void respond(int status, std::string_view content_type, std::string body,
                       const HttpFields& fields = {}) = 0;
  // An answer in pieces: begin, any number of writes, end. Nothing happens once the client is gone.
  virtual void begin(int status, std::string_view content_type, const HttpFields& fields = {}) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Cuts the connection in the middle of an answer: the client sees that it is not whole.
  virtual void abort() = 0;
  virtual size_t backlog() const = 0;  // bytes that the client has not taken yet
  virtual bool closed() const = 0;
  // `gone`: the client left before the answer was complete; at once, also while nothing is written.
  // `drained`: the backlog is empty again. Set before the handler returns; cleared when the answer is
  // complete.
  std::function<void()> gone, drained;
};

class HttpServer {
 public:
  // The handler runs on the server's thread and must be quick. Error(input) where the address or the
  // certificate is no good, Error(failure) where the port is taken.
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;
  HttpServer(const HttpOptions& options, Handler handler, Log log = {});
  ~HttpServer();  // cuts what is still open
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // Runs `job` on the server's thread, soon; from any thread.
  void post(std::function<void()> job);
  void after(double seconds, std::function<void()> job);
  // No new connections; idle ones are closed, the others after their running answer.
  void close_gently();
  int64_t connections() const;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace hysparse
