#include "io/json_value.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "io/json_sax.h"

namespace hysparse {
namespace {

// Builds the document. Pointers on the stack stay valid: only the innermost container grows.
class DocumentBuilder : public json_detail::StrictSax<DocumentBuilder> {
 public:
  using StrictSax::StrictSax;
  Json take() { return std::move(root_); }

  void on_null() { add(nullptr); }
  void on_bool(bool v) { add(v); }
  void on_integer(int64_t v) { add(v); }
  void on_unsigned(uint64_t v) { add(v); }
  void on_real(double v, const std::string&) { add(v); }
  void on_string(std::string&& v) { add(std::move(v)); }
  void on_begin(bool object) { open_.push_back(add(object ? Json::object() : Json::array())); }
  void on_end() { open_.pop_back(); }
  void on_key(std::string&& k) { key_ = std::move(k); }

 private:
  Json* add(Json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& items = parent.get_ref<Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    // The base class's emplace_back: ordered_map's own would search all keys again.
    auto& members = static_cast<Json::object_t::Container&>(parent.get_ref<Json::object_t&>());
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

void refuse_non_finite(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    throw failure("JSON output", "a number is NaN or infinite");
  if (value.is_structured())
    for (const Json& item : value) refuse_non_finite(item);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  DocumentBuilder builder(where);
  json_detail::parse_strict(text, builder);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

std::string dump_json(const Json& value, int indent) {
  refuse_non_finite(value);
  try {
    return value.dump(indent) + (indent >= 0 ? "\n" : "");
  } catch (const nlohmann::detail::exception&) {
    throw failure("JSON output", "a text is not valid UTF-8");
  }
}

}  // namespace hysparse
