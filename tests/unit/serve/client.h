// A plain HTTP client over sockets, for tests that must say exactly what goes over the wire.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json_value.h"

namespace hysparse::tests {

struct Reply {
  int status = 0;  // 0: the connection ended before an answer
  std::string head, body;
  bool complete = false;
  Json json() const { return Json::parse(body, nullptr, false); }
  std::string error() const {
    const Json j = json();
    return j.is_object() && j.contains("error") ? j["error"].value("message", "") : "";
  }
  // The data of an event stream, the end mark left out.
  std::vector<Json> events() const {
    std::vector<Json> out;
    for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
      const size_t end = body.find("\n\n", at);
      const std::string data = body.substr(at + 6, end - at - 6);
      if (data != "[DONE]") out.push_back(Json::parse(data));
      at = end;
    }
    return out;
  }
  bool ended_with_mark() const { return body.ends_with("data: [DONE]\n\n"); }
};

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) close();
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {  // as a client that crashes: RST
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  int fd() const { return fd_; }
  bool send(std::string_view bytes) {
    while (fd_ >= 0 && !bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return fd_ >= 0;
  }
  // More bytes into `held`; false at the end or when `seconds` are over.
  bool more(double seconds = 20) {
    pollfd p{fd_, POLLIN, 0};
    if (fd_ < 0 || poll(&p, 1, static_cast<int>(seconds * 1000)) <= 0) return false;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    held.append(buffer, static_cast<size_t>(n));
    return true;
  }
  bool until(std::string_view what, double seconds = 20) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (held.find(what) == std::string::npos) {
      const double left = std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count();
      if (left <= 0 || !more(left)) return false;
    }
    return true;
  }

  Reply receive(double seconds = 20) {
    Reply r;
    while (held.starts_with("HTTP/1.1 100") || held.find("\r\n\r\n") == std::string::npos) {
      const size_t interim = held.find("\r\n\r\n");
      if (held.starts_with("HTTP/1.1 100") && interim != std::string::npos) {
        held.erase(0, interim + 4);
        continue;
      }
      if (!more(seconds)) return r;
    }
    const size_t head = held.find("\r\n\r\n") + 4;
    r.head = held.substr(0, head);
    held.erase(0, head);
    r.status = std::stoi(r.head.substr(9, 3));
    if (const size_t at = r.head.find("Content-Length: "); at != std::string::npos) {
      const size_t n = std::stoul(r.head.substr(at + 16));
      while (held.size() < n)
        if (!more(seconds)) break;
      r.complete = held.size() >= n;
      r.body = held.substr(0, n);
      held.erase(0, n);
      return r;
    }
    if (r.head.find("Transfer-Encoding: chunked") == std::string::npos) {
      while (more(seconds)) {
      }
      r.body = std::move(held);
      r.complete = true;
      return r;
    }
    while (true) {
      size_t line;
      while ((line = held.find("\r\n")) == std::string::npos)
        if (!more(seconds)) return r;
      const size_t n = std::stoul(held.substr(0, line), nullptr, 16);
      while (held.size() < line + 4 + n)
        if (!more(seconds)) return r;
      r.body += held.substr(line + 2, n);
      held.erase(0, line + 4 + n);
      if (n == 0) {
        r.complete = true;
        return r;
      }
    }
  }

  std::string held;

 private:
  int fd_;
};

inline std::string http_post(const std::string& path, const std::string& body,
                             const std::string& fields = "Content-Type: application/json\r\n") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline Reply post(int port, const std::string& path, const std::string& body,
                  const std::string& fields = "Content-Type: application/json\r\n") {
  Client c(port);
  c.send(http_post(path, body, fields));
  return c.receive();
}
inline Reply post(int port, const std::string& path, const Json& body) {
  return post(port, path, body.dump());
}
inline Reply get(int port, const std::string& path, const std::string& fields = "") {
  Client c(port);
  c.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n");
  return c.receive();
}

}  // namespace hysparse::tests
