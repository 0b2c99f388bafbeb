#include "io/safetensors.h"

#include <algorithm>

#include "io/json.h"
#include "io/safetensors_detail.h"

namespace hysparse {

using namespace safetensors_detail;

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  Header header = parse_header(file_.bytes(), path.string());
  data_ = file_.bytes().data() + header.data_begin;
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& e : entries_) names.push_back(e.first);
  const std::string near = nearest_name(name, names);
  throw input_error(path_.string(), "has no tensor " + quote_text(name),
                    near.empty() ? "" : "the nearest is " + quote_text(near));
}

void SafetensorsFile::read(const std::string& name, const TensorView& dst) const {
  const SafetensorsEntry& e = entry(name);
  const std::string place = path_.string() + ": tensor " + quote_text(name);
  HYSPARSE_CHECK(dst.contiguous(), "{}: read into a strided view {}", place, dst.describe());
  if (dst.rank != static_cast<int>(e.shape.size()) ||
      !std::equal(e.shape.begin(), e.shape.end(), dst.shape.begin()))
    throw expected_error(place, dst.describe(), e.dtype + shape_text(e.shape));
  if (!convert_stored(data(e), e.dtype, dst.data, dst.dtype, static_cast<size_t>(dst.numel())))
    throw input_error(place,
                      fmt::format("stored as {}, which cannot be read as {}", e.dtype, name_of(dst.dtype)));
}

NonFinite SafetensorsFile::count_nonfinite(const std::string& name) const {
  const SafetensorsEntry& e = entry(name);
  const auto bits = static_cast<size_t>(bits_of(e.dtype));
  return safetensors_detail::count_nonfinite(data(e), e.dtype, (e.end - e.begin) * 8 / bits);
}

}  // namespace hysparse
