#include "tokenizer/template_value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace hysparse::chat {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::string_view kSpaces = " \t\n\r\f\v";

[[noreturn]] void wrong(std::string_view expected, const Value& v) {
  throw expected_error("chat template", expected,
                       v.undefined() ? "undefined " + v.undefined_name() : v.kind());
}

Text number_text(double d) {
  if (std::isfinite(d) && d == std::floor(d) && std::abs(d) < 1e16) return Text(fmt::format("{:.1f}", d));
  return Text(fmt::format("{}", d));
}

// A text in quotes, as JSON or as Python's repr() of a list's member.
Text quoted(const Text& t, char quote) {
  Text out(std::string_view(&quote, 1));
  for (size_t i = 0; i < t.bytes.size(); ++i) {
    const char c = t.bytes[i];
    const auto add = [&](std::string_view s) { out.append(Text(s, t.origin[i])); };
    switch (c) {
      case '\n':
        add("\\n");
        break;
      case '\r':
        add("\\r");
        break;
      case '\t':
        add("\\t");
        break;
      case '\\':
        add("\\\\");
        break;
      case '\b':
        quote == '"' ? add("\\b") : add("\\x08");
        break;
      case '\f':
        quote == '"' ? add("\\f") : add("\\x0c");
        break;
      default:
        if (c == quote)
          add(std::string{'\\', c});
        else if (static_cast<unsigned char>(c) < 0x20)
          add(quote == '"' ? fmt::format("\\u{:04x}", static_cast<int>(c))
                           : fmt::format("\\x{:02x}", static_cast<int>(c)));
        else
          add({&c, 1});
    }
  }
  out.append(Text(std::string_view(&quote, 1)));
  return out;
}

Text repr(const Value& v, int depth = 0) {
  if (depth > kMaxDepth) throw input_error("chat template", "a value that is nested too deep");
  if (v.text()) return quoted(v.as_text(), '\'');
  if (!v.list() && !v.dict()) return to_text(v);
  Text out(v.list() ? "[" : "{");
  bool first = true;
  const auto comma = [&] {
    if (!first) out.append(Text(", "));
    first = false;
  };
  if (v.list()) {
    for (const Value& i : v.as_list()) comma(), out.append(repr(i, depth + 1));
  } else {
    for (const auto& [key, i] : v.as_dict()) {
      comma();
      out.append(quoted(key, '\''));
      out.append(Text(": "));
      out.append(repr(i, depth + 1));
    }
  }
  out.append(Text(v.list() ? "]" : "}"));
  return out;
}

}  // namespace

Value Value::of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return nullptr;
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return json.get<int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return Text(json.get_ref<const std::string&>(), Text::kCaller);
    case Json::value_t::array: {
      List out;
      for (const Json& i : json) out.push_back(of(i));
      return out;
    }
    default:
      break;
  }
  Dict out;
  for (const auto& [key, i] : json.items()) out.emplace_back(Text(key, Text::kCaller), of(i));
  return out;
}

const Text& Value::as_text() const {
  if (!text()) wrong("a text", *this);
  return *std::get<std::shared_ptr<const Text>>(v_);
}
List& Value::as_list() const {
  if (!list()) wrong("a list", *this);
  return *std::get<std::shared_ptr<List>>(v_);
}
Dict& Value::as_dict() const {
  if (!dict()) wrong("a mapping", *this);
  return *std::get<std::shared_ptr<Dict>>(v_);
}
int64_t Value::as_integer() const {
  if (boolean()) return std::get<bool>(v_) ? 1 : 0;
  if (!integer()) wrong("an integer", *this);
  return std::get<int64_t>(v_);
}
double Value::as_real() const {
  if (real()) return std::get<double>(v_);
  if (!number()) wrong("a number", *this);
  return static_cast<double>(as_integer());
}

std::string Value::kind() const {
  static constexpr const char* kNames[] = {"an undefined value", "none",   "a boolean", "an integer",
                                           "a number",           "a text", "a list",    "a mapping"};
  return kNames[v_.index()];
}

bool Value::truthy() const {
  if (undefined() || none()) return false;
  if (boolean() || integer()) return as_integer() != 0;
  if (real()) return as_real() != 0;
  if (text()) return !as_text().bytes.empty();
  return list() ? !as_list().empty() : !as_dict().empty();
}

Value Value::member(std::string_view key) const {
  for (const auto& [k, v] : as_dict())
    if (k.bytes == key) return v;
  return Undefined{std::string(key)};
}

void Value::set_member(const Text& key, Value v) const {
  for (auto& [k, old] : as_dict()) {
    if (k.bytes != key.bytes) continue;
    old = std::move(v);
    return;
  }
  as_dict().emplace_back(key, std::move(v));
}

bool equal(const Value& a, const Value& b, int depth) {
  if (depth > kMaxDepth) throw input_error("chat template", "a value that is nested too deep");
  const auto inner = [depth](const Value& x, const Value& y) { return equal(x, y, depth + 1); };
  if (a.number() && b.number())
    return a.real() || b.real() ? a.as_real() == b.as_real() : a.as_integer() == b.as_integer();
  if (a.text() && b.text()) return a.as_text().bytes == b.as_text().bytes;
  if (a.list() && b.list())
    return std::equal(a.as_list().begin(), a.as_list().end(), b.as_list().begin(), b.as_list().end(), inner);
  if (a.dict() && b.dict()) {
    const Dict& x = a.as_dict();
    if (x.size() != b.as_dict().size()) return false;
    return std::all_of(x.begin(), x.end(), [&](const auto& m) {
      const Value other = b.member(m.first.bytes);
      return !other.undefined() && inner(m.second, other);
    });
  }
  return (a.none() && b.none()) || (a.undefined() && b.undefined());
}

int compare(const Value& a, const Value& b) {
  if (a.text() && b.text()) return a.as_text().bytes.compare(b.as_text().bytes);
  if (!a.number() || !b.number())
    throw input_error("chat template", fmt::format("{} and {} have no order", a.kind(), b.kind()));
  if (a.real() || b.real()) {
    const double x = a.as_real(), y = b.as_real();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const int64_t x = a.as_integer(), y = b.as_integer();
  return x < y ? -1 : x > y ? 1 : 0;
}

bool contains(const Value& container, const Value& item) {
  if (container.text()) return container.as_text().bytes.find(item.as_text().bytes) != std::string::npos;
  if (container.dict()) return item.text() && !container.member(item.as_text().bytes).undefined();
  const List& l = container.as_list();
  return std::any_of(l.begin(), l.end(), [&](const Value& v) { return equal(v, item); });
}

Text to_text(const Value& v) {
  if (v.undefined()) return {};
  if (v.none()) return Text("None");
  if (v.boolean()) return Text(v.truthy() ? "True" : "False");
  if (v.integer()) return Text(std::to_string(v.as_integer()));
  if (v.real()) return number_text(v.as_real());
  if (v.text()) return v.as_text();
  return repr(v);
}

Text to_json(const Value& v, int indent, int level) {
  if (level > kMaxDepth) throw input_error("chat template", "a value that is nested too deep");
  if (v.undefined()) throw input_error("chat template", "tojson of the undefined " + v.undefined_name());
  if (v.none()) return Text("null");
  if (v.boolean()) return Text(v.truthy() ? "true" : "false");
  if (v.text()) return quoted(v.as_text(), '"');
  if (!v.list() && !v.dict()) return to_text(v);
  const bool empty = !v.truthy();
  Text out(v.list() ? "[" : "{");
  bool first = true;
  const auto next = [&](int at) {
    if (indent >= 0) out.append(Text(std::string(1, '\n').append(static_cast<size_t>(indent * at), ' ')));
  };
  const auto comma = [&] {
    if (!first) out.append(Text(indent >= 0 ? "," : ", "));
    first = false;
    next(level + 1);
  };
  if (v.list()) {
    for (const Value& i : v.as_list()) comma(), out.append(to_json(i, indent, level + 1));
  } else {
    for (const auto& [key, i] : v.as_dict()) {
      comma();
      out.append(quoted(key, '"'));
      out.append(Text(": "));
      out.append(to_json(i, indent, level + 1));
    }
  }
  if (!empty) next(level);
  out.append(Text(v.list() ? "]" : "}"));
  return out;
}

Text strip(const Text& t, bool left, bool right, std::string_view of) {
  const std::string_view set = of.empty() ? kSpaces : of;
  size_t begin = 0, end = t.bytes.size();
  if (left)
    while (begin < end && set.find(t.bytes[begin]) != std::string_view::npos) ++begin;
  if (right)
    while (end > begin && set.find(t.bytes[end - 1]) != std::string_view::npos) --end;
  return t.part(begin, end - begin);
}

Text replace(const Text& t, const Text& from, const Text& to) {
  if (from.bytes.empty()) throw input_error("chat template", "replace() of an empty text");
  Text out;
  size_t at = 0;
  while (true) {
    const size_t found = t.bytes.find(from.bytes, at);
    out.append(t.part(at, found == std::string::npos ? found : found - at));
    if (found == std::string::npos) return out;
    out.append(to);
    at = found + from.bytes.size();
  }
}

List split(const Text& t, const Text* separator, int64_t most) {
  List out;
  size_t at = 0;
  const auto enough = [&] { return most >= 0 && static_cast<int64_t>(out.size()) >= most; };
  if (separator == nullptr) {
    while (true) {
      at = std::min(t.bytes.size(), t.bytes.find_first_not_of(kSpaces, at));
      if (at == t.bytes.size()) return out;
      const size_t end =
          enough() ? t.bytes.size() : std::min(t.bytes.size(), t.bytes.find_first_of(kSpaces, at));
      out.emplace_back(t.part(at, end - at));
      at = end;
    }
  }
  if (separator->bytes.empty()) throw input_error("chat template", "split() at an empty text");
  while (true) {
    const size_t found = enough() ? std::string::npos : t.bytes.find(separator->bytes, at);
    out.emplace_back(t.part(at, found == std::string::npos ? found : found - at));
    if (found == std::string::npos) return out;
    at = found + separator->bytes.size();
  }
}

std::vector<size_t> characters(std::string_view bytes) {
  std::vector<size_t> out;
  size_t at = 0;
  while (at < bytes.size()) {
    out.push_back(at);
    at += utf8_step(bytes, at).length;
  }
  out.push_back(at);
  return out;
}

Value slice(const Value& v, const Value& from, const Value& to, const Value& step_value) {
  const int64_t step = step_value.none() ? 1 : step_value.as_integer();
  if (step == 0) throw input_error("chat template", "a slice of step 0");
  const std::vector<size_t> at = v.text() ? characters(v.as_text().bytes) : std::vector<size_t>();
  const auto n = static_cast<int64_t>(v.text() ? at.size() - 1 : v.as_list().size());
  const auto place = [&](const Value& x, int64_t otherwise) {
    if (x.none()) return otherwise;
    int64_t i = x.as_integer();
    if (i < 0) i += n;
    return std::clamp(i, step > 0 ? int64_t(0) : int64_t(-1), step > 0 ? n : n - 1);
  };
  const int64_t begin = place(from, step > 0 ? 0 : n - 1), end = place(to, step > 0 ? n : -1);
  List items;
  Text text;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    const auto k = static_cast<size_t>(i);
    if (v.text())
      text.append(v.as_text().part(at[k], at[k + 1] - at[k]));
    else
      items.push_back(v.as_list()[k]);
  }
  return v.text() ? Value(std::move(text)) : Value(std::move(items));
}

Value item(const Value& v, const Value& key) {
  if (v.undefined()) throw input_error("chat template", "a member of the undefined " + v.undefined_name());
  if (v.dict()) return key.text() ? v.member(key.as_text().bytes) : Value();
  if (key.text()) return Undefined{key.as_text().bytes};
  if (v.none()) return Undefined{"member of none"};
  int64_t i = key.as_integer();
  const std::vector<size_t> at = v.text() ? characters(v.as_text().bytes) : std::vector<size_t>();
  const auto n = static_cast<int64_t>(v.text() ? at.size() - 1 : v.as_list().size());
  if (i < 0) i += n;
  if (i < 0 || i >= n) return Undefined{fmt::format("[{}]", key.as_integer())};
  const auto k = static_cast<size_t>(i);
  return v.text() ? Value(v.as_text().part(at[k], at[k + 1] - at[k])) : v.as_list()[k];
}

}  // namespace hysparse::chat
