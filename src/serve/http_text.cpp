#include "serve/http_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

std::string_view error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string http_head(int status, std::string_view content_type, const HttpFields& fields, int64_t length,
                      bool last) {
  std::string out = fmt::format(
      "HTTP/1.1 {} {}\r\nServer: hysparse\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\n", status,
      reason(status), content_type);
  for (const auto& [name, value] : fields) out += fmt::format("{}: {}\r\n", name, value);
  if (length >= 0) out += fmt::format("Content-Length: {}\r\n", length);
  if (length == -1) out += "Transfer-Encoding: chunked\r\n";
  if (last) out += "Connection: close\r\n";
  return out += "\r\n";
}

std::string http_error_body(int status, std::string_view message, std::string_view param,
                            std::string_view code) {
  const auto or_null = [](std::string_view s) { return s.empty() ? Json(nullptr) : Json(s); };
  const Json error = {{"error",
                       {{"message", message},
                        {"type", error_type(status)},
                        {"param", or_null(param)},
                        {"code", or_null(code)}}}};
  // Messages quote what users sent: whatever is no UTF-8 there is replaced.
  return error.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hysparse
