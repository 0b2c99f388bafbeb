#include "tokenizer/template_functions.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace hysparse::chat {
namespace {

template <class F>
Text each_byte(const Text& t, const F& f) {
  Text out = t;
  for (size_t i = 0; i < out.bytes.size(); ++i) out.bytes[i] = f(out.bytes, i);
  return out;
}
char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
}
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}
bool letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

// Letters of ASCII, as names of roles and days need them.
Text change_case(const std::string& how, const Text& t) {
  return each_byte(t, [&](const std::string& s, size_t i) {
    if (how == "upper") return upper(s[i]);
    if (how == "lower") return lower(s[i]);
    const bool begins = how == "title" ? i == 0 || !letter(s[i - 1]) : i == 0;
    return begins ? upper(s[i]) : lower(s[i]);
  });
}

List items(const Value& v) {
  List out;
  for (const auto& [key, value] : v.as_dict()) out.emplace_back(List{Value(key), value});
  return out;
}

List list_of(const Value& v) {
  if (v.list()) return v.as_list();
  List out;
  if (v.text()) {
    const std::vector<size_t> at = characters(v.as_text().bytes);
    for (size_t i = 0; i + 1 < at.size(); ++i) out.emplace_back(v.as_text().part(at[i], at[i + 1] - at[i]));
    return out;
  }
  for (const auto& [key, value] : v.as_dict()) out.emplace_back(key);
  return out;
}

int64_t length(const Value& v) {
  if (v.text()) return static_cast<int64_t>(characters(v.as_text().bytes).size()) - 1;
  return static_cast<int64_t>(v.dict() ? v.as_dict().size() : v.as_list().size());
}

Value to_integer(const Value& v) {
  if (v.real()) return static_cast<int64_t>(std::clamp(v.as_real(), -1e15, 1e15));
  if (v.number()) return v.as_integer();
  int64_t out = 0;
  if (v.text()) {
    const Text t = strip(v.as_text(), true, true);
    std::from_chars(t.bytes.data(), t.bytes.data() + t.bytes.size(), out);
  }
  return out;
}

Value select(const std::string& name, const Value& v, const Arguments& a) {
  List out;
  const bool wanted = name == "selectattr";
  const std::string& member = a.want(0, name).as_text().bytes;
  Arguments rest;
  for (size_t i = 2; i < a.by_place.size(); ++i) rest.by_place.push_back(a.by_place[i]);
  for (const Value& i : v.as_list()) {
    const Value m = i.dict() ? i.member(member) : Value();
    const bool is = a.by_place.size() > 1 ? apply_test(a.by_place[1].as_text().bytes, m, rest) : m.truthy();
    if (is == wanted) out.push_back(i);
  }
  return out;
}

Value map(const Value& v, const Arguments& a) {
  const Value attribute = a.at(~size_t(0), "attribute");
  if (attribute.undefined())
    throw input_error("chat template", "the filter map without attribute= is not supported");
  List out;
  for (const Value& i : v.as_list()) out.push_back(item(i, attribute));
  return out;
}

Value sorted(List l) {
  std::stable_sort(l.begin(), l.end(), [](const Value& a, const Value& b) { return compare(a, b) < 0; });
  return l;
}

}  // namespace

Value Arguments::at(size_t place, std::string_view name) const {
  if (place < by_place.size()) return by_place[place];
  for (const auto& [n, v] : by_name)
    if (n == name) return v;
  return {};
}

const Value& Arguments::want(size_t place, std::string_view of) const {
  if (place >= by_place.size()) throw input_error("chat template", fmt::format("{} lacks an argument", of));
  return by_place[place];
}

Value apply_filter(const std::string& name, const Value& v, const Arguments& a) {
  if (name == "default" || name == "d")
    return v.undefined() || (a.at(1, "boolean").truthy() && !v.truthy()) ? a.at(0, "default_value") : v;
  if (v.undefined() && name != "string")
    throw input_error("chat template",
                      fmt::format("the filter {} of the undefined {}", name, v.undefined_name()));
  if (name == "safe") return v;
  if (name == "trim") {
    const Value of = a.at(0, "chars");
    return strip(to_text(v), true, true,
                 of.text() ? std::string_view(of.as_text().bytes) : std::string_view());
  }
  if (name == "tojson") {
    const Value indent = a.at(0, "indent");
    const int64_t n = indent.undefined() || indent.none() ? -1 : indent.as_integer();
    if (n > 16) throw input_error("chat template", "tojson: an indent over 16");
    return to_json(v, static_cast<int>(n));
  }
  if (name == "length" || name == "count") return length(v);
  if (name == "string") return to_text(v);
  if (name == "int") return to_integer(v);
  if (name == "float") return v.as_real();
  if (name == "abs") return v.integer() ? Value(std::abs(v.as_integer())) : Value(std::abs(v.as_real()));
  if (name == "list") return list_of(v);
  if (name == "items") return items(v);
  if (name == "selectattr" || name == "rejectattr") return select(name, v, a);
  if (name == "map") return map(v, a);
  if (name == "sort") return sorted(list_of(v));
  if (name == "first" || name == "last") {
    const List l = list_of(v);
    if (l.empty()) return Undefined{name + " of nothing"};
    return name == "first" ? l.front() : l.back();
  }
  if (name == "reverse") {
    if (v.text()) return slice(v, nullptr, nullptr, int64_t(-1));
    List l = list_of(v);
    std::reverse(l.begin(), l.end());
    return l;
  }
  if (name == "unique") {
    List out;
    for (const Value& i : list_of(v))
      if (std::none_of(out.begin(), out.end(), [&](const Value& o) { return equal(i, o); })) out.push_back(i);
    return out;
  }
  if (name == "join") {
    const Value between = a.at(0, "d"), attribute = a.at(1, "attribute");
    Text out;
    bool first = true;
    for (const Value& i : list_of(v)) {
      if (!first && between.text()) out.append(between.as_text());
      first = false;
      out.append(to_text(attribute.undefined() ? i : item(i, attribute)));
    }
    return out;
  }
  if (name == "replace") return replace(to_text(v), a.want(0, name).as_text(), a.want(1, name).as_text());
  return change_case(name, to_text(v));  // upper, lower, title, capitalize
}

bool apply_test(const std::string& name, const Value& v, const Arguments& a) {
  if (name == "defined") return !v.undefined();
  if (name == "undefined") return v.undefined();
  if (name == "none") return v.none();
  if (name == "string") return v.text();
  if (name == "mapping") return v.dict();
  if (name == "iterable" || name == "sequence") return v.list() || v.text() || v.dict();
  if (name == "number") return v.number();
  if (name == "boolean") return v.boolean();
  if (name == "integer") return v.integer();
  if (name == "float") return v.real();
  if (name == "true") return v.boolean() && v.truthy();
  if (name == "false") return v.boolean() && !v.truthy();
  if (name == "equalto" || name == "eq") return equal(v, a.want(0, name));
  if (name == "ne") return !equal(v, a.want(0, name));
  if (name == "in") return contains(a.want(0, name), v);
  if (name == "sameas") {
    const Value& o = a.want(0, name);
    return v.kind() == o.kind() && equal(v, o);
  }
  return (v.as_integer() % 2 != 0) == (name == "odd");
}

Value apply_method(const std::string& name, const Value& v, const Arguments& a) {
  if (v.undefined())
    throw input_error("chat template",
                      fmt::format("the method {} of the undefined {}", name, v.undefined_name()));
  if (v.dict()) {
    if (name == "items") return items(v);
    if (name == "keys") return list_of(v);
    if (name == "values") {
      List out;
      for (const auto& [key, value] : v.as_dict()) out.push_back(value);
      return out;
    }
    if (name == "get") {
      const Value found = v.member(a.want(0, name).as_text().bytes);
      if (!found.undefined()) return found;
      return a.by_place.size() > 1 ? a.by_place[1] : Value(nullptr);
    }
  }
  if (v.list() && name == "append") {
    v.as_list().push_back(a.want(0, name));
    return nullptr;
  }
  const Text& t = v.as_text();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value of = a.at(0);
    return strip(t, name != "rstrip", name != "lstrip",
                 of.text() ? std::string_view(of.as_text().bytes) : std::string_view());
  }
  if (name == "split") {
    const Value separator = a.at(0, "sep"), most = a.at(1, "maxsplit");
    return split(t, separator.text() ? &separator.as_text() : nullptr,
                 most.undefined() ? -1 : most.as_integer());
  }
  if (name == "startswith" || name == "endswith") {
    const Value& with = a.want(0, name);
    const auto is = [&](const Value& w) {
      return name == "startswith" ? t.bytes.starts_with(w.as_text().bytes)
                                  : t.bytes.ends_with(w.as_text().bytes);
    };
    return with.list() ? std::any_of(with.as_list().begin(), with.as_list().end(), is) : is(with);
  }
  if (name == "replace") return replace(t, a.want(0, name).as_text(), a.want(1, name).as_text());
  if (name == "join") return apply_filter("join", a.want(0, name), {{v}, {}});
  if (name == "find") {
    const size_t found = t.bytes.find(a.want(0, name).as_text().bytes);
    if (found == std::string::npos) return int64_t(-1);
    return static_cast<int64_t>(characters(std::string_view(t.bytes).substr(0, found)).size()) - 1;
  }
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
    return change_case(name, t);
  throw input_error("chat template", fmt::format("the method {} of {}", name, v.kind()));
}

}  // namespace hysparse::chat
