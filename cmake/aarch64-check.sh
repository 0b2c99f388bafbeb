#!/usr/bin/env bash
# Compiles the library for 64-bit Arm (the NEON level of the kernels among it); warnings are errors. Needs Debian's
# g++-aarch64-linux-gnu beside what ./run installs; nothing is linked or run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cxx=${AARCH64_CXX:-aarch64-linux-gnu-g++}
command -v "$cxx" >/dev/null || { echo "error: $cxx is missing (Debian: apt install g++-aarch64-linux-gnu)" >&2; exit 1; }
out=${AARCH64_OUT:-build/aarch64}
mkdir -p "$out"

# Header-only libraries are the same for every machine: links to them alone, so that no host header comes in.
headers=$out/include
mkdir -p "$headers"
for name in hwy fmt nlohmann pcre2.h utf8proc.h; do
  [ -e "/usr/include/$name" ] && ln -sfn "/usr/include/$name" "$headers/$name"
done
flags=(-std=c++20 -O1 -fPIC -Isrc -Iinclude -isystem "$headers" -Wall -Wextra -Wpedantic -Wno-missing-field-initializers
  -Werror -fno-math-errno -ffp-contract=off "-DHWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128)")

mapfile -t sources < <(git ls-files 'src/base/*.cpp' 'src/tensor/*.cpp' 'src/kernels/*.cpp' 'src/io/*.cpp' 'src/model/*.cpp' \
  'src/engine/*.cpp' | grep -v '^src/kernels/cuda/')
compile() {
  local object="$out/${1//\//_}.o"
  [ "$object" -nt "$1" ] || "$cxx" "${flags[@]}" -c "$1" -o "$object"
}
export -f compile
export cxx out
export AARCH64_FLAGS="${flags[*]@Q}"
printf '%s\n' "${sources[@]}" | xargs -P "${HYSPARSE_JOBS:-$(nproc)}" -I{} \
  bash -c 'eval "flags=($AARCH64_FLAGS)"; compile {}'
echo "aarch64: ${#sources[@]} files compile"
