#include "kernels/cuda/sm80/decode/instantiate.cuh"

namespace hysparse::cuda::decode {
template struct Kernels<Code::int8, 128, 128>;
}
