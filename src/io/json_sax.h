// Internal to io: the strict event parser under parse_json and the safetensors header reader. Includes
// nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "io/json_value.h"

namespace hysparse::json_detail {

// The keys of the object being read. Linear while small: most objects have a handful of keys.
class KeySet {
 public:
  bool insert(const std::string& key) {
    if (large_.empty() && small_.size() < 12) {
      for (const std::string& k : small_)
        if (k == key) return false;
      small_.push_back(key);
      return true;
    }
    if (large_.empty()) large_.insert(small_.begin(), small_.end());
    return large_.insert(key).second;
  }

 private:
  std::vector<std::string> small_;
  std::unordered_set<std::string> large_;
};

// nlohmann's SAX interface with the document rules in it (depth, duplicate keys). Derived brings
//   on_begin(bool object), on_end(), on_key(std::string&&), on_null(), on_bool(bool), on_integer(int64_t),
//   on_unsigned(uint64_t), on_real(double, const std::string& text), on_string(std::string&&)
// and reports errors by throwing.
template <class Derived>
class StrictSax {
 public:
  explicit StrictSax(std::string_view where) : where_(where) {}

  bool null() { return self().on_null(), true; }
  bool boolean(bool v) { return self().on_bool(v), true; }
  bool number_integer(int64_t v) { return self().on_integer(v), true; }
  bool number_unsigned(uint64_t v) { return self().on_unsigned(v), true; }
  bool number_float(double v, const std::string& text) { return self().on_real(v, text), true; }
  bool string(std::string& v) { return self().on_string(std::move(v)), true; }
  bool binary(nlohmann::ordered_json::binary_t&) { return false; }  // JSON text has none
  bool start_object(size_t) { return enter(true); }
  bool start_array(size_t) { return enter(false); }
  bool key(std::string& k) {
    if (!keys_.back().insert(k)) throw input_error(self().key_place(), "duplicate key " + quote_text(k));
    return self().on_key(std::move(k)), true;
  }
  bool end_object() { return leave(); }
  bool end_array() { return leave(); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) {
    std::string_view text =
        e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t p = text.find("] "); p != std::string_view::npos) text.remove_prefix(p + 2);
    const std::string shown = quote_text(text, 300);
    throw input_error(where_, "not valid JSON: " + shown.substr(1, shown.size() - 2));
  }

  const std::string& where() const { return where_; }
  std::string key_place() const { return where_; }  // leads an error about a key; Derived may say more

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
  bool enter(bool object) {
    if (keys_.size() >= static_cast<size_t>(kJsonMaxDepth))
      throw input_error(where_, fmt::format("nested deeper than {} levels", kJsonMaxDepth));
    keys_.emplace_back();
    return self().on_begin(object), true;
  }
  bool leave() {
    keys_.pop_back();
    return self().on_end(), true;
  }

  std::string where_;
  std::vector<KeySet> keys_;  // one a nesting level; stays empty for arrays
};

// Feeds the whole text, which must be one document, to the handler.
template <class Handler>
void parse_strict(std::string_view text, Handler& handler) {
  // nlohmann's lexer takes a NUL for the end of the text and would ignore what follows it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw input_error(handler.where(), fmt::format("not valid JSON: NUL byte at offset {}", nul));
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw input_error(handler.where(), "not valid JSON: empty");
  nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &handler);
}

}  // namespace hysparse::json_detail
