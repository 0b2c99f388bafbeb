// One list of fields drives config files, `--set`, `--help`, saving and (later) Python.
// A settings struct T declares
//   template <class V> static void fields(V&& visit) {
//     visit("hidden_size", &T::hidden_size, "width of the residual stream");
//     ...
//   }
// Supported member types: bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>,
// std::optional of those, enums with an EnumNames specialisation, and nested structs with fields().
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace hysparse {

// Specialise for each enum: static const std::vector<std::pair<E, std::string_view>>& list();
template <class E>
struct EnumNames;

template <class E>
std::string_view enum_name(E value) {
  for (const auto& [v, name] : EnumNames<E>::list())
    if (v == value) return name;
  return "?";
}

}  // namespace hysparse
