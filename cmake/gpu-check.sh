#!/usr/bin/env bash
# Tests and times the GPU kernels on the GPU that is here. Takes a build (HYSPARSE_CUDA_LIBRARY, or build/cuda) or makes one. The C ABI is
# checked from Python, where torch has the references and peers; the operations of ops.h by parity_kernels. Results: $HYSPARSE_RESULTS (default out/gpu-check).
set -euo pipefail

checks=$(($(grep -cE '^ +results.append' tests/gpu/check_*.py | awk -F: '{n += $2} END {print n}') + 2 * $(grep -hcE '^TEST_P' tests/parity/kernels/*.cpp | awk '{n += $1} END {print n}')))
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no NVIDIA GPU here: at least $checks GPU checks and all GPU benchmarks were not run"
  echo "0 passed, 0 failed, $checks skipped"
  exit 0
fi
python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || {
  echo "error: the GPU checks need python3 with a CUDA build of torch (their references and peers run in it)" >&2
  exit 1
}
if [ -z "${HYSPARSE_CUDA_LIBRARY:-}" ]; then
  if [ ! -f build/cuda/lib/libhysparse_cuda.so ]; then
    command -v nvcc >/dev/null || { echo "error: no build of libhysparse_cuda.so and no nvcc to make one" >&2; exit 1; }
    cmake --preset cuda >/dev/null
    cmake --build --preset cuda --target hysparse_cuda
  fi
  export HYSPARSE_CUDA_LIBRARY=$PWD/build/cuda/lib/libhysparse_cuda.so
fi
results=${HYSPARSE_RESULTS:-out/gpu-check}
mkdir -p "$results"
if [ "${1:-}" != --no-bench ]; then
  python3 bench/gpu/bench_attention.py "$results/attention_forward.json"
  python3 bench/gpu/bench_attention_backward.py "$results/attention_backward.json"
  python3 bench/gpu/bench_sparse.py "$results/sparse_forward.json"
  python3 bench/gpu/bench_decode.py "$results/decode.json"
  python3 bench/gpu/bench_sparse_layer.py "$results/sparse_layer.json"
  python3 bench/gpu/bench_experts.py "$results/experts.json"
fi

# The operations of ops.h, held to the float64 reference as the CPU's are, then the C ABI's kernels from Python.
parity=${HYSPARSE_PARITY_KERNELS:-build/tests/parity_kernels}
if [ ! -x "$parity" ]; then
  cmake --preset cpu >/dev/null
  cmake --build --preset cpu --target parity_kernels
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$parity" --gtest_brief=1 --gtest_filter='*cuda*' 2>&1 | tee "$log" || true
python3 tests/gpu/gpu_check.py 2>&1 | tee -a "$log" || true
# A program that does not reach its closing line counts as one failure.
read -r ran ok <<<"$(sed -nE 's/^\[==========\] ([0-9]+) tests? from .* ran.*/\1/p; s/^\[  PASSED  \] ([0-9]+) tests?\.$/\1/p' "$log" | paste -sd' ')"
read -r passed failed <<<"$(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$log" | tail -1)"
passed=$((${ok:-0} + ${passed:-0})) failed=$((${ran:-1} - ${ok:-0} + ${failed:-1}))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
