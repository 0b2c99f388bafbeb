// Warpgroup products D[64, N] (+)= A[64, 16] B[16, N] as in common/wgmma.cuh, A and B in shared memory, for
// every N that is a multiple of 16 up to 160: an expert's rows stand on the N side.
#pragma once

#include <cstdint>

namespace hysparse::cuda::experts {

template <int N>
struct WgmmaRows;

#define HYSPARSE_OUT_8(i)                                                                         \
  "+f"(d[8 * i]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), "+f"(d[8 * i + 4]), \
      "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
// a, b, p, tb, ta: numbers of the operands behind the N / 2 accumulators.
#define HYSPARSE_WGMMA_ROWS(N, registers, outs, a, b, p, tb, ta)                                         \
  template <>                                                                                            \
  struct WgmmaRows<N> {                                                                                  \
    template <int kTransB, int kTransA>                                                                  \
    __device__ static void ss(float (&d)[N / 2], uint64_t a_desc, uint64_t b_desc, int accumulate) {     \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p ", 0; wgmma.mma_async.sync.aligned.m64n" #N     \
                   "k16.f32.bf16.bf16 {" registers "}, %" #a ", %" #b ", p, 1, 1, %" #ta ", %" #tb "; }" \
                   : outs                                                                                \
                   : "l"(a_desc), "l"(b_desc), "r"(accumulate), "n"(kTransB), "n"(kTransA));             \
    }                                                                                                    \
  }
#define HYSPARSE_LIST(...) __VA_ARGS__
#define HYSPARSE_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HYSPARSE_R1 HYSPARSE_R0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HYSPARSE_R2 HYSPARSE_R1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define HYSPARSE_R3 HYSPARSE_R2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define HYSPARSE_R4 HYSPARSE_R3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define HYSPARSE_R5 HYSPARSE_R4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define HYSPARSE_R6 HYSPARSE_R5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HYSPARSE_R7 HYSPARSE_R6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define HYSPARSE_R8 HYSPARSE_R7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define HYSPARSE_R9 HYSPARSE_R8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define HYSPARSE_O0 HYSPARSE_OUT_8(0)
#define HYSPARSE_O1 HYSPARSE_O0, HYSPARSE_OUT_8(1)
#define HYSPARSE_O2 HYSPARSE_O1, HYSPARSE_OUT_8(2)
#define HYSPARSE_O3 HYSPARSE_O2, HYSPARSE_OUT_8(3)
#define HYSPARSE_O4 HYSPARSE_O3, HYSPARSE_OUT_8(4)
#define HYSPARSE_O5 HYSPARSE_O4, HYSPARSE_OUT_8(5)
#define HYSPARSE_O6 HYSPARSE_O5, HYSPARSE_OUT_8(6)
#define HYSPARSE_O7 HYSPARSE_O6, HYSPARSE_OUT_8(7)
#define HYSPARSE_O8 HYSPARSE_O7, HYSPARSE_OUT_8(8)
#define HYSPARSE_O9 HYSPARSE_O8, HYSPARSE_OUT_8(9)

HYSPARSE_WGMMA_ROWS(16, HYSPARSE_R0, HYSPARSE_LIST(HYSPARSE_O0), 8, 9, 10, 11, 12);
HYSPARSE_WGMMA_ROWS(32, HYSPARSE_R1, HYSPARSE_LIST(HYSPARSE_O1), 16, 17, 18, 19, 20);
HYSPARSE_WGMMA_ROWS(48, HYSPARSE_R2, HYSPARSE_LIST(HYSPARSE_O2), 24, 25, 26, 27, 28);
HYSPARSE_WGMMA_ROWS(64, HYSPARSE_R3, HYSPARSE_LIST(HYSPARSE_O3), 32, 33, 34, 35, 36);
HYSPARSE_WGMMA_ROWS(80, HYSPARSE_R4, HYSPARSE_LIST(HYSPARSE_O4), 40, 41, 42, 43, 44);
HYSPARSE_WGMMA_ROWS(96, HYSPARSE_R5, HYSPARSE_LIST(HYSPARSE_O5), 48, 49, 50, 51, 52);
HYSPARSE_WGMMA_ROWS(112, HYSPARSE_R6, HYSPARSE_LIST(HYSPARSE_O6), 56, 57, 58, 59, 60);
HYSPARSE_WGMMA_ROWS(128, HYSPARSE_R7, HYSPARSE_LIST(HYSPARSE_O7), 64, 65, 66, 67, 68);
HYSPARSE_WGMMA_ROWS(144, HYSPARSE_R8, HYSPARSE_LIST(HYSPARSE_O8), 72, 73, 74, 75, 76);
HYSPARSE_WGMMA_ROWS(160, HYSPARSE_R9, HYSPARSE_LIST(HYSPARSE_O9), 80, 81, 82, 83, 84);

#undef HYSPARSE_WGMMA_ROWS
#undef HYSPARSE_OUT_8
#undef HYSPARSE_LIST
#undef HYSPARSE_R0
#undef HYSPARSE_R1
#undef HYSPARSE_R2
#undef HYSPARSE_R3
#undef HYSPARSE_R4
#undef HYSPARSE_R5
#undef HYSPARSE_R6
#undef HYSPARSE_R7
#undef HYSPARSE_R8
#undef HYSPARSE_R9
#undef HYSPARSE_O0
#undef HYSPARSE_O1
#undef HYSPARSE_O2
#undef HYSPARSE_O3
#undef HYSPARSE_O4
#undef HYSPARSE_O5
#undef HYSPARSE_O6
#undef HYSPARSE_O7
#undef HYSPARSE_O8
#undef HYSPARSE_O9

}  // namespace hysparse::cuda::experts
