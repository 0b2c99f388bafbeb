#include "engine/json_schema.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "engine/json_text.h"
#include "engine/pattern.h"
#include "io/json.h"

namespace hysparse {
namespace {

constexpr int kMaxDepth = 40;           // of schemas within schemas, references followed
constexpr int64_t kMaxLength = 20'000;  // characters or items that a schema may count

const std::set<std::string> kAnnotations = {"title", "description", "default",      "examples", "$schema",
                                            "$id",   "$comment",    "deprecated",   "readOnly", "writeOnly",
                                            "$defs", "definitions", "discriminator"};

class Compiler {
 public:
  Compiler(AutomatonBuilder& b, const Json& root) : b_(b), text_(b), root_(root) {}

  Fragment run() { return value(root_, b_.where(), 0); }

 private:
  [[noreturn]] void refuse(const std::string& where, std::string_view what, std::string hint = {}) const {
    throw input_error(where, what, std::move(hint));
  }

  // ---- reading the schema
  void check_keywords(const Json& s, const std::string& where, const std::set<std::string>& known) const {
    for (const auto& [key, unused] : s.items()) {
      if (known.count(key) != 0 || kAnnotations.count(key) != 0) continue;
      refuse(where, "the keyword " + quote_text(key) + " is not supported here",
             key == "oneOf" ? "write anyOf where no value fits two of the schemas" : "");
    }
  }
  int64_t count(const Json& s, const std::string& where, const char* key, int64_t otherwise) const {
    if (!s.contains(key)) return otherwise;
    const Json& v = s[key];
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() > kMaxLength)
      throw expected_error(where + "." + key, fmt::format("a count of at most {}", kMaxLength), v.dump());
    return v.get<int64_t>();
  }
  std::pair<int64_t, int64_t> counts(const Json& s, const std::string& where, const char* least,
                                     const char* most) const {
    const std::pair<int64_t, int64_t> out{count(s, where, least, 0), count(s, where, most, -1)};
    if (out.second >= 0 && out.second < out.first)
      refuse(where + "." + most, fmt::format("{} is less than {} ({})", out.second, least, out.first));
    return out;
  }
  std::optional<int64_t> bound(const Json& s, const std::string& where, const char* key) const {
    if (!s.contains(key)) return {};
    const Json& v = s[key];
    if (!v.is_number_integer() || std::abs(v.get<double>()) > 999'999'999'999'999.0)
      throw expected_error(where + "." + key, "an integer of at most 15 digits", v.dump());
    return v.get<int64_t>();
  }

  Fragment value(const Json& s, const std::string& where, int depth) {
    if (depth > kMaxDepth)
      refuse(where, fmt::format("schemas nested deeper than {}", kMaxDepth), "a $ref may not lead to itself");
    if (s.is_boolean()) {
      if (!s.get<bool>()) refuse(where, "the schema false allows nothing");
      return text_.free_value(kFreeDepth);
    }
    if (!s.is_object()) throw expected_error(where, "a schema (an object)", quote_text(s.dump()));
    if (s.contains("$ref")) return reference(s, where, depth);
    if (s.contains("enum") || s.contains("const")) return constants(s, where);
    for (const char* key : {"anyOf", "allOf"})
      if (s.contains(key)) return combination(s, where, key, depth);
    if (!s.contains("type")) {
      // What a schema speaks of tells its type; with nothing said any value will do.
      for (const auto& [key, type] : {std::pair("properties", "object"),
                                      {"additionalProperties", "object"},
                                      {"items", "array"},
                                      {"prefixItems", "array"},
                                      {"pattern", "string"}})
        if (s.contains(key)) return typed(s, where, type, depth);
      check_keywords(s, where, {});
      return text_.free_value(kFreeDepth);
    }
    const Json& type = s["type"];
    if (type.is_string()) return typed(s, where, type.get<std::string>(), depth);
    if (!type.is_array() || type.empty())
      throw expected_error(where + ".type", "a type or a list of types", quote_text(type.dump()));
    std::vector<Fragment> options;
    // Each type takes the keywords that are its own.
    for (const Json& t : type) {
      if (!t.is_string()) throw expected_error(where + ".type", "names of types", quote_text(t.dump()));
      const auto& name = t.get_ref<const std::string&>();
      Json part = s;
      for (const auto& [key, unused] : s.items())
        if (belongs_elsewhere(key, name)) part.erase(key);
      options.push_back(typed(part, where, name, depth));
    }
    return b_.either(options);
  }

  static const std::set<std::string>& keywords_of(const std::string& type) {
    static const std::set<std::string> object = {
        "type", "properties", "required", "additionalProperties", "minProperties", "maxProperties"};
    static const std::set<std::string> array = {"type",     "items",    "prefixItems",
                                                "minItems", "maxItems", "uniqueItems"};
    static const std::set<std::string> string = {"type", "minLength", "maxLength", "pattern", "format"};
    static const std::set<std::string> integer = {"type", "minimum", "maximum", "exclusiveMinimum",
                                                  "exclusiveMaximum"};
    static const std::set<std::string> plain = {"type"};
    return type == "object"    ? object
           : type == "array"   ? array
           : type == "string"  ? string
           : type == "integer" ? integer
                               : plain;
  }
  static bool belongs_elsewhere(const std::string& key, const std::string& type) {
    if (keywords_of(type).count(key) != 0) return false;
    for (const char* other : {"object", "array", "string", "integer"})
      if (keywords_of(other).count(key) != 0) return true;
    return false;
  }

  Fragment typed(const Json& s, const std::string& where, const std::string& type, int depth) {
    check_keywords(s, where, keywords_of(type));
    if (type == "object") return object(s, where, depth);
    if (type == "array") return array(s, where, depth);
    if (type == "string") return string(s, where);
    if (type == "integer") return integer(s, where);
    if (type == "number") return text_.number();
    if (type == "boolean") return b_.either({b_.literal("true"), b_.literal("false")});
    if (type == "null") return b_.literal("null");
    throw expected_error(where + ".type", "object, array, string, integer, number, boolean or null",
                         quote_text(type));
  }

  Fragment reference(const Json& s, const std::string& where, int depth) {
    check_keywords(s, where, {"$ref"});
    if (!s["$ref"].is_string()) throw expected_error(where + ".$ref", "a text", quote_text(s["$ref"].dump()));
    const std::string ref = s["$ref"].get<std::string>();
    for (const char* home : {"$defs", "definitions"}) {
      const std::string prefix = std::string("#/") + home + "/";
      if (!ref.starts_with(prefix)) continue;
      const std::string name = ref.substr(prefix.size());
      if (!root_.contains(home) || !root_[home].is_object() || !root_[home].contains(name))
        refuse(where + ".$ref", quote_text(ref) + " is not there");
      if (!open_.insert(ref).second)
        refuse(where + ".$ref", quote_text(ref) + " leads to itself",
               "recursive schemas are not supported: write the levels out");
      const Fragment out = value(root_[home][name], ref, depth + 1);
      open_.erase(ref);
      return out;
    }
    refuse(where + ".$ref", quote_text(ref) + " is not supported", "#/$defs/NAME and #/definitions/NAME are");
  }

  Fragment constants(const Json& s, const std::string& where) {
    check_keywords(s, where, {"enum", "const", "type"});
    std::vector<Fragment> options;
    const auto add = [&](const Json& v) {
      if (s.contains("type") && !has_type(v, s["type"])) return;  // the other keyword excludes it
      options.push_back(b_.literal(dump_json(v, -1)));
    };
    if (s.contains("const")) {
      if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), s["const"]) == s["enum"].end())
        refuse(where, "const is none of enum");
      add(s["const"]);
    } else {
      if (!s["enum"].is_array() || s["enum"].empty())
        throw expected_error(where + ".enum", "a list of values", quote_text(s["enum"].dump()));
      for (const Json& v : s["enum"]) add(v);
    }
    if (options.empty()) refuse(where, "no value of enum or const has the type");
    return b_.either(options);
  }
  static bool has_type(const Json& v, const Json& type) {
    if (type.is_array())
      return std::any_of(type.begin(), type.end(), [&](const Json& t) { return has_type(v, t); });
    if (!type.is_string()) return false;
    const auto& t = type.get_ref<const std::string&>();
    return (t == "object" && v.is_object()) || (t == "array" && v.is_array()) ||
           (t == "string" && v.is_string()) || (t == "integer" && v.is_number_integer()) ||
           (t == "number" && v.is_number()) || (t == "boolean" && v.is_boolean()) ||
           (t == "null" && v.is_null());
  }

  Fragment combination(const Json& s, const std::string& where, const std::string& key, int depth) {
    check_keywords(s, where, {key});
    const Json& list = s[key];
    if (!list.is_array() || list.empty())
      throw expected_error(where + "." + key, "a list of schemas", quote_text(list.dump()));
    if (key == "allOf" && list.size() > 1)
      refuse(where, "allOf of several schemas is not supported", "merge them into one");
    std::vector<Fragment> options;
    for (size_t i = 0; i < list.size(); ++i)
      options.push_back(value(list[i], fmt::format("{}.{}[{}]", where, key, i), depth + 1));
    return b_.either(options);
  }

  Fragment string(const Json& s, const std::string& where) {
    const bool counted = s.contains("minLength") || s.contains("maxLength");
    if (int(counted) + int(s.contains("pattern")) + int(s.contains("format")) > 1)
      refuse(where, "minLength and maxLength, pattern, and format exclude each other",
             "put the lengths into the pattern");
    if (s.contains("pattern")) {
      if (!s["pattern"].is_string())
        throw expected_error(where + ".pattern", "a text", quote_text(s["pattern"].dump()));
      return text_.quoted(
          build_pattern(b_, s["pattern"].get_ref<const std::string&>(), PatternUse::json_string));
    }
    if (s.contains("format")) {
      const std::string name = s["format"].is_string() ? s["format"].get<std::string>() : s["format"].dump();
      const std::string_view pattern = format_pattern(name);
      if (pattern.empty())
        refuse(where + ".format", quote_text(name) + " is not supported",
               "date, time, date-time, uuid and ipv4 are");
      return text_.quoted(build_pattern(b_, pattern, PatternUse::json_string));
    }
    const auto [least, most] = counts(s, where, "minLength", "maxLength");
    return text_.quoted(b_.repeat([&] { return text_.character(); }, least, most));
  }

  Fragment integer(const Json& s, const std::string& where) {
    std::optional<int64_t> lo = bound(s, where, "minimum"), hi = bound(s, where, "maximum");
    if (const auto x = bound(s, where, "exclusiveMinimum")) lo = std::max(lo.value_or(*x + 1), *x + 1);
    if (const auto x = bound(s, where, "exclusiveMaximum")) hi = std::min(hi.value_or(*x - 1), *x - 1);
    if (lo && hi && *lo > *hi) refuse(where, fmt::format("no integer is within [{}, {}]", *lo, *hi));
    return text_.integer(lo, hi);
  }

  Fragment array(const Json& s, const std::string& where, int depth) {
    if (s.contains("uniqueItems") && s["uniqueItems"] != Json(false))
      refuse(where, "the keyword \"uniqueItems\" is not supported here");
    const auto [least, most] = counts(s, where, "minItems", "maxItems");
    const Json any = true;
    const bool closed = s.contains("items") && s["items"] == Json(false);
    const Json& items = s.contains("items") && !closed ? s["items"] : any;
    const auto rest = [&] { return value(items, where + ".items", depth + 1); };
    if (!s.contains("prefixItems")) {
      if (closed) refuse(where + ".items", "the schema false allows nothing", "write maxItems: 0");
      return text_.list('[', ']', rest, least, most);
    }
    const Json& prefix = s["prefixItems"];
    if (!prefix.is_array() || prefix.empty())
      throw expected_error(where + ".prefixItems", "a list of schemas", quote_text(prefix.dump()));
    const auto n = static_cast<int64_t>(prefix.size());
    // All of them are written: a tuple that ends early is valid, and never what was meant.
    if (most >= 0 && most < n)
      refuse(where + ".maxItems", fmt::format("{} is less than the {} of prefixItems", most, n));
    if (closed && least > n)
      refuse(where + ".minItems", fmt::format("{} is more than the {} of prefixItems", least, n));
    Fragment out = b_.then(b_.literal("["), text_.space());
    for (int64_t i = 0; i < n; ++i) {
      if (i > 0) out = b_.then(out, text_.comma());
      out = b_.then(
          out, value(prefix[static_cast<size_t>(i)], fmt::format("{}.prefixItems[{}]", where, i), depth + 1));
    }
    if (s.contains("items") && !closed)
      out = b_.then(out, b_.repeat([&] { return b_.then(text_.comma(), rest()); },
                                   std::max<int64_t>(0, least - n), most < 0 ? -1 : most - n));
    else if (least > n)
      refuse(where + ".minItems", fmt::format("{} is more than the {} of prefixItems", least, n),
             "give items for the others");
    return b_.then(out, b_.then(text_.space(), b_.literal("]")));
  }

  Fragment object(const Json& s, const std::string& where, int depth) {
    const Json none = Json::object(), any = true;
    const Json& properties = s.contains("properties") ? s["properties"] : none;
    if (!properties.is_object())
      throw expected_error(where + ".properties", "an object", quote_text(properties.dump()));
    std::set<std::string> required;
    if (s.contains("required")) {
      if (!s["required"].is_array())
        throw expected_error(where + ".required", "a list of names", quote_text(s["required"].dump()));
      for (const Json& name : s["required"]) {
        if (!name.is_string())
          throw expected_error(where + ".required", "a list of names", quote_text(name.dump()));
        required.insert(name.get<std::string>());
      }
    }
    const Json& more = s.contains("additionalProperties") ? s["additionalProperties"] : any;
    std::vector<std::pair<std::string, const Json*>> members;
    for (const auto& [name, schema] : properties.items()) members.emplace_back(name, &schema);
    for (const std::string& name : required) {  // required without a schema of its own
      if (properties.contains(name)) continue;
      if (more == Json(false)) refuse(where + ".required", quote_text(name) + " is none of the properties");
      members.emplace_back(name, &more);
    }
    const auto [least, most] = counts(s, where, "minProperties", "maxProperties");
    if (members.empty()) {
      const auto member = [&] {
        return b_.then(text_.string(),
                       b_.then(text_.colon(), value(more, where + ".additionalProperties", depth + 1)));
      };
      if (more == Json(false)) return b_.then(b_.literal("{"), b_.then(text_.space(), b_.literal("}")));
      if (more == any && !s.contains("additionalProperties") && least == 0 && most < 0)
        return text_.free_object(kFreeDepth);
      return text_.list('{', '}', member, least, most);
    }
    if (s.contains("minProperties") || s.contains("maxProperties"))
      refuse(where, "minProperties and maxProperties beside properties are not supported",
             "list the required ones");
    if (more.is_object() && !more.empty())
      refuse(where + ".additionalProperties", "a schema beside properties is not supported",
             "false or true are");
    // Two tracks: before any member was written, and after (where a comma comes first).
    const Fragment open = b_.then(b_.literal("{"), text_.space());
    int32_t first = open.end, later = b_.state();
    const int32_t end = b_.state();
    for (const auto& [name, schema] : members) {
      const int32_t next_first = b_.state(), next_later = b_.state();
      const Fragment member = b_.then(b_.literal(dump_json(Json(name), -1)),
                                      b_.then(text_.colon(), value(*schema, where + "." + name, depth + 1)));
      const Fragment comma = text_.comma();
      b_.join(first, member.begin);
      b_.join(later, comma.begin);
      b_.join(comma.end, member.begin);
      b_.join(member.end, next_later);
      if (required.count(name) == 0) {
        b_.join(first, next_first);
        b_.join(later, next_later);
      }
      first = next_first;
      later = next_later;
    }
    b_.join(first, end);
    b_.join(later, end);
    return b_.then({open.begin, end}, b_.then(text_.space(), b_.literal("}")));
  }

  AutomatonBuilder& b_;
  JsonText text_;
  const Json& root_;
  std::set<std::string> open_;  // references being followed
};

}  // namespace

Fragment build_json_schema(AutomatonBuilder& builder, const Json& schema) {
  return Compiler(builder, schema).run();
}

Fragment build_json_object(AutomatonBuilder& builder) {
  return JsonText(builder).free_object(kFreeDepth);
}

}  // namespace hysparse
