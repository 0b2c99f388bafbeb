#include "shipped.h"

#include <filesystem>

#include "base/error.h"

namespace hysparse {

std::string shipped(const std::string& folder, const std::string& name, const std::string& hint) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& place :
       {fs::path("."), program / "../..", program / "../../..", program / "../share/hysparse"}) {
    const fs::path file = place / folder / name;
    if (fs::exists(file, error)) return file.lexically_normal().string();
  }
  throw input_error("hysparse", fmt::format("{}/{}, which comes with it, was not found", folder, name), hint);
}

}  // namespace hysparse
