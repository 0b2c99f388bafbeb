// What `train` asks of its two folders before it touches anything.
#pragma once

#include <filesystem>

namespace hysparse {

// A folder of `data prepare` with everything that belongs to it; whether it has a held-out part (meta.json
// says so). Error(input) names what is missing.
bool check_data_folder(const std::filesystem::path& data);

// Whether a training run was begun in `out`.
bool holds_run(const std::filesystem::path& out);

// A run's files go into a folder of their own: Error(input) where `out` is a file, the current folder or one
// above it, or holds other things and no run.
void check_run_folder(const std::filesystem::path& out);

}  // namespace hysparse
