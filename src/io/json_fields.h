// Settings structs (base/fields.h) from and to JSON, from `--set key=value`, and as a table for --help.
//   ModelConfig c;
//   read_fields(read_json_file(path), c, path.string());
//   set_field(c, "rope_theta", "640000", "--set");
// The templates only list a struct's members; what is done with the list is in json_fields.cpp, so this
// header costs its users no JSON library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/fields.h"
#include "io/json.h"
#include "io/json_value.h"

namespace hysparse {

struct FieldInfo {
  std::string name;  // dotted: "train.lr"
  std::string type;  // "integer", "number", "true|false", "text", "head|channel", "list of integers", ...
  std::string default_value;  // as `--set` takes it; "null" for an absent optional
  std::string help;
};

namespace fields_detail {

enum class Kind { boolean, integer, real, text, integers, texts, choice, group };

// One member of one struct object, type-erased.
struct Field {
  std::string name;
  std::string help;
  Kind kind{};
  bool optional = false;
  void* member = nullptr;                  // the value; where optional: the std::optional around it
  void* (*present)(void*) = nullptr;       // optional: the value inside, or nullptr
  void* (*engage)(void*) = nullptr;        // optional: gives it a fresh value and returns that
  void (*reset)(void*) = nullptr;          // optional: absent again
  std::vector<std::string_view> names;     // choice: the enumeration's names, in the order of its EnumNames
  size_t (*index)(const void*) = nullptr;  // choice: which of `names` the value is; names.size() when none
  void (*choose)(void*, size_t) = nullptr;
  std::vector<Field> (*members)(void*) = nullptr;  // group

  void* value() const { return optional ? present(member) : member; }
};

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
std::vector<Field> members_of(void* object);

template <class T>
void describe_type(Field& f) {
  if constexpr (std::is_same_v<T, bool>) {
    f.kind = Kind::boolean;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    f.kind = Kind::integer;
  } else if constexpr (std::is_same_v<T, double>) {
    f.kind = Kind::real;
  } else if constexpr (std::is_same_v<T, std::string>) {
    f.kind = Kind::text;
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    f.kind = Kind::integers;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    f.kind = Kind::texts;
  } else if constexpr (std::is_enum_v<T>) {
    f.kind = Kind::choice;
    for (const auto& entry : EnumNames<T>::list()) f.names.push_back(entry.second);
    f.index = [](const void* p) {
      const auto& list = EnumNames<T>::list();
      size_t i = 0;
      while (i < list.size() && list[i].first != *static_cast<const T*>(p)) ++i;
      return i;
    };
    f.choose = [](void* p, size_t i) { *static_cast<T*>(p) = EnumNames<T>::list()[i].first; };
  } else {
    static_assert(std::is_class_v<T> && !is_optional<T>, "not a member type that base/fields.h lists");
    f.kind = Kind::group;
    f.members = &members_of<T>;
  }
}

template <class T>
Field make_field(std::string_view name, std::string_view help, T* member) {
  Field f;
  f.name = name;
  f.help = help;
  f.member = member;
  if constexpr (is_optional<T>) {
    using Value = typename T::value_type;
    f.optional = true;
    f.present = [](void* p) -> void* {
      auto& o = *static_cast<T*>(p);
      return o ? &*o : nullptr;
    };
    f.engage = [](void* p) -> void* { return &static_cast<T*>(p)->emplace(); };
    f.reset = [](void* p) { static_cast<T*>(p)->reset(); };
    describe_type<Value>(f);
  } else {
    describe_type<T>(f);
  }
  return f;
}

template <class T>
std::vector<Field> members_of(void* object) {
  std::vector<Field> out;
  T& self = *static_cast<T*>(object);
  T::fields([&](std::string_view name, auto member, std::string_view help) {
    out.push_back(make_field(name, help, &(self.*member)));
  });
  return out;
}

void read(const Json& object, const std::vector<Field>& fields, const std::string& where,
          const std::string& prefix, const std::vector<std::string>& also_allowed);
Json write(const std::vector<Field>& fields);
void set(const std::vector<Field>& fields, const std::string& dotted_key, const std::string& value,
         const std::string& where);
void list(const std::vector<Field>& fields, const std::string& prefix, std::vector<FieldInfo>& out);

}  // namespace fields_detail

// Sets the members that `object` has; the others keep their values. An unknown key is an error that names the
// nearest valid one (`also_allowed`: further keys of the top level, left to the caller), as is a value of
// another JSON type: no text or 4.0 for an integer, no null except for an optional (= absent). An integer is
// a fine number, and a single integer a fine list of integers. Errors read "<where>: <dotted key>: expected
// ..., got ...". On an error `out` is as it was.
template <class T>
void read_fields(const Json& object, T& out, const std::string& where,
                 const std::vector<std::string>& also_allowed = {}) {
  T next = out;
  fields_detail::read(object, fields_detail::members_of<T>(&next), where, "", also_allowed);
  out = std::move(next);
}

// All members in their order; absent optionals are left out.
// (`auto`: the type is Json, complete only where <nlohmann/json.hpp> is included.)
template <class T>
auto write_fields(const T& in) {
  T copy = in;
  return fields_detail::write(fields_detail::members_of<T>(&copy));
}

// One `--set key=value`. Texts may be bare or in JSON quotes, lists are JSON ("[5, 9]"; one integer is a
// list), null makes an optional absent. `where` leads the error: "--set".
template <class T>
void set_field(T& out, const std::string& dotted_key, const std::string& value, const std::string& where) {
  T next = out;
  fields_detail::set(fields_detail::members_of<T>(&next), dotted_key, value, where);
  out = std::move(next);
}

// Every member, groups flattened, with the defaults of a fresh T.
template <class T>
std::vector<FieldInfo> list_fields() {
  T fresh{};
  std::vector<FieldInfo> out;
  fields_detail::list(fields_detail::members_of<T>(&fresh), "", out);
  return out;
}

}  // namespace hysparse
