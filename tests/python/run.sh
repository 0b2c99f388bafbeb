#!/usr/bin/env bash
# run.sh BUILD PYTHON TEST: lays the Python package out as `pip install .` packs it and runs a test file against that.
set -euo pipefail
build=$1 python=$2 test=$3
[ -n "$python" ] || { echo "no python3 >= 3.11 with numpy and pytest was found when CMake ran (Debian: apt install python3-numpy python3-pytest; then cmake again)" >&2; exit 1; }
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
cmake --install "$build" --component python --prefix "$package" >/dev/null
unset HYSPARSE_LIBRARY
cd "$package"
PYTHONPATH=$package PYTHONDONTWRITEBYTECODE=1 HYSPARSE_PROGRAM=$build/bin/hysparse "$python" -m pytest -q -p no:cacheprovider "$test"
