#!/usr/bin/env bash
# Tests and times the GPU kernels on the GPU that is here. Takes a build (HYSPARSE_CUDA_LIBRARY, or build/cuda) or makes one. The checks and
# the peers run in Python with torch. Results: $HYSPARSE_RESULTS (default out/gpu-check).
set -euo pipefail

checks=$(grep -cE '^ +results.append' tests/gpu/check_*.py | awk -F: '{n += $2} END {print n}')
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
  python3 bench/gpu/bench_sparse.py "$results/sparse_forward.json"
  python3 bench/gpu/bench_decode.py "$results/decode.json"
fi
python3 tests/gpu/gpu_check.py
