// Loops over registers must be unrolled whole, else they go through memory; loops over rows of a weight must
// not be, else prefetchers lose the stream.
#pragma once

#ifdef __clang__
#define HYSPARSE_UNROLL _Pragma("unroll")
#define HYSPARSE_NO_UNROLL _Pragma("nounroll")
#else
#define HYSPARSE_UNROLL _Pragma("GCC unroll 16")
#define HYSPARSE_NO_UNROLL _Pragma("GCC unroll 1")
#endif
