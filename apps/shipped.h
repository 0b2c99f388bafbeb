// Files that come with the program: configs and the small model.
#pragma once

#include <string>

namespace hysparse {

// FOLDER/NAME of the source tree or the installation; Error(input) with `hint` where it is not there.
std::string shipped(const std::string& folder, const std::string& name, const std::string& hint);

// The model that text commands take when none is named.
inline std::string shipped_model() {
  return shipped("models", "hysparse-14m", "name a model directory with --model");
}

}  // namespace hysparse
