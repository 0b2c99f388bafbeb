#include "io/json_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace hysparse::fields_detail {
namespace {

std::string join(const std::vector<std::string_view>& names, std::string_view between) {
  std::string out;
  for (std::string_view n : names) {
    if (!out.empty()) out += between;
    out += n;
  }
  return out;
}

std::string type_text(const Field& f) {
  switch (f.kind) {
    case Kind::boolean:
      return "true|false";
    case Kind::integer:
      return "integer";
    case Kind::real:
      return "number";
    case Kind::text:
      return "text";
    case Kind::integers:
      return "list of integers";
    case Kind::texts:
      return "list of texts";
    case Kind::choice:
      return join(f.names, "|");
    case Kind::group:
      return "object";
  }
  return "?";
}

std::string wanted(const Field& f) {
  const std::string null = f.optional ? " or null" : "";
  switch (f.kind) {
    case Kind::boolean:
      return "true or false" + null;
    case Kind::integer:
      return "an integer" + null;
    case Kind::choice:
      return "one of " + join(f.names, ", ") + null;
    case Kind::group:
      return "an object" + null;
    default:
      return "a " + type_text(f) + null;
  }
}

// What came, for a message: its type where that is the matter, its value where it is short.
std::string shown(const Json& j) {
  if (j.is_string()) return "text " + quote_text(j.get_ref<const std::string&>());
  if (j.is_object()) return "an object";
  if (j.is_array()) return fmt::format("a list of {}", j.size());
  return j.dump();
}

[[noreturn]] void refuse(const Json& j, const std::string& where, const std::string& expected) {
  std::string hint;
  if (j.is_string() && expected.find("integer") != std::string::npos)
    hint = "write the number without quotes";
  if (j.is_number_float() && expected.find("integer") != std::string::npos &&
      std::abs(j.get<double>()) < 1e15 && j.get<double>() == std::floor(j.get<double>()))
    hint = fmt::format("write {:.0f}", j.get<double>());
  throw expected_error(where, expected, shown(j), hint);
}

int64_t as_integer(const Json& j, const std::string& where, const std::string& expected) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  const bool too_large = (j.is_number_unsigned() && j.get<uint64_t>() > static_cast<uint64_t>(kMax)) ||
                         (j.is_number_float() && std::abs(j.get<double>()) >= 0x1p63);
  if (too_large)
    throw expected_error(where,
                         fmt::format("an integer within [{}, {}]", std::numeric_limits<int64_t>::min(), kMax),
                         j.dump());
  if (!j.is_number_integer()) refuse(j, where, expected);
  return j.get<int64_t>();
}

void read_value(const Json& j, const Field& f, void* value, const std::string& where,
                const std::string& dotted) {
  const std::string place = where + ": " + dotted;
  switch (f.kind) {
    case Kind::boolean:
      if (!j.is_boolean()) refuse(j, place, wanted(f));
      *static_cast<bool*>(value) = j.get<bool>();
      return;
    case Kind::integer:
      *static_cast<int64_t*>(value) = as_integer(j, place, wanted(f));
      return;
    case Kind::real:
      if (!j.is_number()) refuse(j, place, wanted(f));
      *static_cast<double*>(value) = j.get<double>();
      return;
    case Kind::text:
      if (!j.is_string()) refuse(j, place, wanted(f));
      *static_cast<std::string*>(value) = j.get<std::string>();
      return;
    case Kind::integers: {
      std::vector<int64_t> out;
      if (j.is_array()) {
        for (size_t i = 0; i < j.size(); ++i)
          out.push_back(as_integer(j[i], fmt::format("{}[{}]", place, i), "an integer"));
      } else if (j.is_number()) {
        out.push_back(as_integer(j, place, "an integer or a list of integers"));
      } else {
        refuse(j, place, "an integer or a list of integers");
      }
      *static_cast<std::vector<int64_t>*>(value) = std::move(out);
      return;
    }
    case Kind::texts: {
      if (!j.is_array()) refuse(j, place, wanted(f));
      std::vector<std::string> out;
      for (size_t i = 0; i < j.size(); ++i) {
        if (!j[i].is_string()) refuse(j[i], fmt::format("{}[{}]", place, i), "a text");
        out.push_back(j[i].get<std::string>());
      }
      *static_cast<std::vector<std::string>*>(value) = std::move(out);
      return;
    }
    case Kind::choice: {
      if (!j.is_string()) refuse(j, place, wanted(f));
      const auto& name = j.get_ref<const std::string&>();
      const auto found = std::find(f.names.begin(), f.names.end(), name);
      if (found == f.names.end()) {
        const std::string near = nearest_name(name, {f.names.begin(), f.names.end()});
        throw expected_error(place, wanted(f), quote_text(name),
                             near.empty() ? "" : "did you mean " + near + "?");
      }
      f.choose(value, static_cast<size_t>(found - f.names.begin()));
      return;
    }
    case Kind::group:
      read(j, f.members(value), where, dotted + ".", {});
      return;
  }
}

void read_field(const Json& j, const Field& f, const std::string& where, const std::string& dotted) {
  if (f.optional && j.is_null()) {
    f.reset(f.member);
    return;
  }
  void* value = f.member;
  if (f.optional) {
    value = f.present(f.member);
    if (!value) value = f.engage(f.member);
  }
  read_value(j, f, value, where, dotted);
}

Json write_value(const Field& f, void* value) {
  switch (f.kind) {
    case Kind::boolean:
      return *static_cast<bool*>(value);
    case Kind::integer:
      return *static_cast<int64_t*>(value);
    case Kind::real:
      return *static_cast<double*>(value);
    case Kind::text:
      return *static_cast<std::string*>(value);
    case Kind::integers:
      return *static_cast<std::vector<int64_t>*>(value);
    case Kind::texts:
      return *static_cast<std::vector<std::string>*>(value);
    case Kind::choice: {
      const size_t i = f.index(value);
      HYSPARSE_CHECK(i < f.names.size(), "{} holds a value outside its enumeration", f.name);
      return std::string(f.names[i]);
    }
    case Kind::group:
      return write(f.members(value));
  }
  return nullptr;
}

[[noreturn]] void refuse_key(const std::string& where, const std::string& key,
                             const std::vector<std::string>& valid) {
  const std::string near = nearest_name(key, valid);
  throw input_error(where, "unknown key " + quote_text(key),
                    near.empty() ? "" : "did you mean \"" + near + "\"?");
}

// The value of `--set` as the JSON that a file would have held.
Json from_argument(const Field& f, const std::string& value, const std::string& place) {
  if (f.optional && value == "null") return nullptr;
  if (f.kind == Kind::text || f.kind == Kind::choice) {
    if (value.empty() || value.front() != '"') return value;
    return parse_json(value, place);
  }
  if (f.kind == Kind::real) {  // JSON has no ".5" and no "5."; a command line may
    double d = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), d);
    if (error == std::errc() && end == value.data() + value.size() && std::isfinite(d)) return d;
  }
  try {
    return parse_json(value, place);
  } catch (const Error&) {
    const std::string expected =
        f.kind == Kind::integers || f.kind == Kind::texts ? "a JSON list" : wanted(f);
    throw expected_error(place, expected, quote_text(value));
  }
}

}  // namespace

void read(const Json& object, const std::vector<Field>& fields, const std::string& where,
          const std::string& prefix, const std::vector<std::string>& also_allowed) {
  if (!object.is_object()) {
    const std::string place = prefix.empty() ? where : where + ": " + prefix.substr(0, prefix.size() - 1);
    throw expected_error(place, "an object", shown(object));
  }
  for (const auto& [key, value] : object.items()) {
    const std::string& name = key;  // (a structured binding cannot be captured)
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    if (field != fields.end()) {
      read_field(value, *field, where, prefix + name);
    } else if (std::find(also_allowed.begin(), also_allowed.end(), name) == also_allowed.end()) {
      std::vector<std::string> valid;
      for (const Field& f : fields) valid.push_back(prefix + f.name);
      valid.insert(valid.end(), also_allowed.begin(), also_allowed.end());
      refuse_key(where, prefix + name, valid);
    }
  }
}

Json write(const std::vector<Field>& fields) {
  Json out = Json::object();
  for (const Field& f : fields)
    if (void* value = f.value()) out[f.name] = write_value(f, value);
  return out;
}

void set(const std::vector<Field>& fields, const std::string& dotted_key, const std::string& value,
         const std::string& where) {
  std::vector<Field> level = fields;
  size_t begin = 0;
  while (true) {
    const size_t dot = dotted_key.find('.', begin);
    const std::string part = dotted_key.substr(begin, dot == std::string::npos ? dot : dot - begin);
    const auto field =
        std::find_if(level.begin(), level.end(), [&](const Field& f) { return f.name == part; });
    const bool descends = dot != std::string::npos;
    if (field == level.end() || (descends && field->kind != Kind::group)) {
      std::vector<FieldInfo> all;
      list(fields, "", all);
      std::vector<std::string> valid;
      for (const FieldInfo& info : all) valid.push_back(info.name);
      refuse_key(where, dotted_key, valid);
    }
    if (!descends) {
      if (field->kind == Kind::group)
        throw input_error(where, dotted_key + " is a group of settings",
                          "set one of them: " + dotted_key + ".NAME=VALUE");
      read_field(from_argument(*field, value, where + ": " + dotted_key), *field, where, dotted_key);
      return;
    }
    void* inner = field->value();
    if (!inner) inner = field->engage(field->member);
    level = std::vector<Field>(field->members(inner));
    begin = dot + 1;
  }
}

void list(const std::vector<Field>& fields, const std::string& prefix, std::vector<FieldInfo>& out) {
  for (const Field& f : fields) {
    void* value = f.value();
    if (f.kind == Kind::group) {
      if (!value) value = f.engage(f.member);
      list(f.members(value), prefix + f.name + ".", out);
      continue;
    }
    std::string text = "null";
    if (value) {
      const Json j = write_value(f, value);
      text = f.kind == Kind::text || f.kind == Kind::choice ? j.get<std::string>() : j.dump();
    }
    out.push_back({prefix + f.name, type_text(f), text, f.help});
  }
}

}  // namespace hysparse::fields_detail
