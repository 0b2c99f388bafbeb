// What the inference cache keeps the K and V of full layers in.
#pragma once

#include <string_view>

#include "base/fields.h"
#include "tensor/dtype.h"

namespace hysparse {

// Of 8 bits each row of a head has a scale of its own (kernels/ops.h, QuantiseKv). Rings of window branches,
// whose size does not grow with the text, always keep the compute dtype.
enum class KvDtype {
  compute,  // "auto": as the activations
  int8,
  fp8,  // e4m3
};
template <>
struct EnumNames<KvDtype> {
  static const std::vector<std::pair<KvDtype, std::string_view>>& list();
};
// Error(input) naming `option` where there is no such format.
KvDtype parse_kv_dtype(std::string_view option, std::string_view name);

// What the elements of pages are: codes where they are in 8 bits.
constexpr DType page_dtype(KvDtype kv, DType compute) {
  return kv == KvDtype::int8 ? DType::i8 : kv == KvDtype::fp8 ? DType::f8 : compute;
}

}  // namespace hysparse
