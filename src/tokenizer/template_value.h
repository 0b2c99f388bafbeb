// Internal to the tokenizer: what expressions of chat templates compute with. Python's values as far as
// templates see them; every byte of a text remembers whether it came from the template or from its caller.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/json_value.h"

namespace hysparse::chat {

struct Text {
  std::string bytes;
  std::string origin;  // a byte for each: kTemplate or kCaller

  static constexpr char kTemplate = 0, kCaller = 1;
  Text() = default;
  explicit Text(std::string_view s, char from = kTemplate) : bytes(s), origin(s.size(), from) {}
  void append(const Text& t) {
    bytes += t.bytes;
    origin += t.origin;
  }
  Text part(size_t begin, size_t count) const {
    Text out;
    out.bytes = bytes.substr(begin, count);
    out.origin = origin.substr(begin, count);
    return out;
  }
};

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Text, Value>>;  // in order

struct Undefined {
  std::string name;
};

class Value {
 public:
  Value() : v_(Undefined{}) {}
  Value(Undefined u) : v_(std::move(u)) {}
  Value(std::nullptr_t) : v_(nullptr) {}
  Value(bool b) : v_(b) {}
  Value(int64_t i) : v_(i) {}
  Value(double d) : v_(d) {}
  Value(Text t) : v_(std::make_shared<const Text>(std::move(t))) {}
  Value(List l) : v_(std::make_shared<List>(std::move(l))) {}
  Value(Dict d) : v_(std::make_shared<Dict>(std::move(d))) {}
  static Value of(const Json& json);  // texts are the caller's

  bool undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool none() const { return std::holds_alternative<std::nullptr_t>(v_); }
  bool boolean() const { return std::holds_alternative<bool>(v_); }
  bool integer() const { return std::holds_alternative<int64_t>(v_); }
  bool real() const { return std::holds_alternative<double>(v_); }
  bool number() const { return integer() || real() || boolean(); }
  bool text() const { return std::holds_alternative<std::shared_ptr<const Text>>(v_); }
  bool list() const { return std::holds_alternative<std::shared_ptr<List>>(v_); }
  bool dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(v_); }

  // The wrong kind is Error(input) that says what came.
  const Text& as_text() const;
  List& as_list() const;
  Dict& as_dict() const;
  int64_t as_integer() const;
  double as_real() const;
  const std::string& undefined_name() const { return std::get<Undefined>(v_).name; }

  std::string kind() const;
  bool truthy() const;
  // A key's value, or undefined.
  Value member(std::string_view key) const;
  void set_member(const Text& key, Value v) const;  // of a dict

 private:
  std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<List>, std::shared_ptr<Dict>>
      v_;
};

bool equal(const Value& a, const Value& b, int depth = 0);  // Error(input) where they nest without end
int compare(const Value& a, const Value& b);                // Error(input) where Python has no order
bool contains(const Value& container, const Value& item);
Text to_text(const Value& v);  // as {{ v }} prints it
Text to_json(const Value& v, int indent,
             int level = 0);  // as json.dumps(ensure_ascii=False); indent < 0: one line
Text strip(const Text& t, bool left, bool right, std::string_view of = {});  // empty: white space
Text replace(const Text& t, const Text& from, const Text& to);
List split(const Text& t, const Text* separator, int64_t most);  // null: at white space; most < 0: all
Value slice(const Value& v, const Value& from, const Value& to, const Value& step);
Value item(const Value& v, const Value& key);  // v[key]
// Code points' starts of a text, and its end.
std::vector<size_t> characters(std::string_view bytes);

}  // namespace hysparse::chat
