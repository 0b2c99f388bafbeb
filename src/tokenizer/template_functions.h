// Internal to the tokenizer: filters, tests and methods of chat templates that need nothing but values.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tokenizer/template_value.h"

namespace hysparse::chat {

struct Arguments {
  std::vector<Value> by_place;
  std::vector<std::pair<std::string, Value>> by_name;

  // The argument at `place`, or called `name`; undefined where there is none.
  Value at(size_t place, std::string_view name = {}) const;
  const Value& want(size_t place, std::string_view of) const;
};

Value apply_filter(const std::string& name, const Value& v, const Arguments& a);
bool apply_test(const std::string& name, const Value& v, const Arguments& a);
Value apply_method(const std::string& name, const Value& v, const Arguments& a);

}  // namespace hysparse::chat
