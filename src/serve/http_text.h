// Internal to serve: the bytes of answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace hysparse {

// Status line and fields. length >= 0: of the body that follows; -1: it comes in chunks; -2: it ends with the
// connection.
std::string http_head(int status, std::string_view content_type, const HttpFields& fields, int64_t length,
                      bool last);
// {"error": {"message", "type", "param", "code"}} as OpenAI's clients read it.
std::string http_error_body(int status, std::string_view message, std::string_view param = {},
                            std::string_view code = {});

}  // namespace hysparse
