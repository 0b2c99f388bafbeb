#include "kernels/cpu/gemm_onednn.h"

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#ifdef HYSPARSE_WITH_ONEDNN

#include <dlfcn.h>

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_TBB
#error "oneDNN with the TBB runtime starts threads of its own: use one with OpenMP, or -DHYSPARSE_ONEDNN=OFF"
#endif

#endif

namespace hysparse::gemm {

bool cpu_has_amx_bf16() {
#if defined(__x86_64__)
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
  }();
  return has;
#else
  return false;
#endif
}

#ifdef HYSPARSE_WITH_ONEDNN

namespace {

// The OpenMP runtime that oneDNN is bound to, looked up in the process so that the compiler's own (libomp
// under clang) is not taken for it. Null where oneDNN runs without OpenMP.
struct OpenMp {
  void (*set_threads)(int) = nullptr;
  int (*threads)() = nullptr;
};
const OpenMp& open_mp() {
  static const OpenMp found = [] {
    OpenMp o;
    o.set_threads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    o.threads = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    return o;
  }();
  return found;
}

// This thread's OpenMP regions have one thread while it lives.
class OneThread {
 public:
  OneThread() : before_(open_mp().threads ? open_mp().threads() : 0) {
    if (before_ > 1) open_mp().set_threads(1);
  }
  ~OneThread() {
    if (before_ > 1) open_mp().set_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

using Key = std::array<int64_t, 10>;

struct Primitive {
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul matmul;
};

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

Primitive make_primitive(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, int64_t ldc,
                         bool accumulate) {
  using Desc = dnnl::memory::desc;
  const auto type = a.dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  Primitive p;
  p.a = Desc({m, k}, type, dnnl::memory::dims{a.row, a.col});
  p.b = Desc({k, n}, type, dnnl::memory::dims{b.row, b.col});
  p.c = Desc({m, n}, dnnl::memory::data_type::f32, dnnl::memory::dims{ldc, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc desc(engine(), p.a, p.b, p.c, attributes);
#else
  const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(p.a, p.b, p.c), attributes, engine());
#endif
  p.scratch = desc.scratchpad_desc();
  p.matmul = dnnl::matmul(desc);
  return p;
}

// The latest kCapacity shapes. A primitive is immutable once made and may run on several threads.
class Cache {
 public:
  std::shared_ptr<const Primitive> get(const Key& key, const Matrix& a, const Matrix& b) {
    std::lock_guard lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it)
      if (it->first == key) {
        entries_.splice(entries_.begin(), entries_, it);
        return entries_.front().second;
      }
    auto made =
        std::make_shared<const Primitive>(make_primitive(a, b, key[0], key[1], key[2], key[7], key[8] != 0));
    entries_.emplace_front(key, std::move(made));
    if (entries_.size() > kCapacity) entries_.pop_back();
    return entries_.front().second;
  }

 private:
  static constexpr size_t kCapacity = 256;
  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Primitive>>> entries_;
};

}  // namespace

bool onednn_available(DType dtype) {
  // bf16 needs a CPU that oneDNN has kernels for: whether it has is known once it is asked.
  static const bool bf16 = [] {
    try {
      make_primitive({nullptr, DType::bf16, 1, 1}, {nullptr, DType::bf16, 1, 1}, 1, 1, 1, 1, false);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return dtype == DType::f32 || (dtype == DType::bf16 && bf16);
}

void onednn_multiply(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc,
                     bool accumulate) {
  static Cache cache;
  try {
    const OneThread scope;
    const Key key{m, n, k, a.row, a.col, b.row, b.col, ldc, accumulate, static_cast<int64_t>(a.dtype)};
    const std::shared_ptr<const Primitive> p = cache.get(key, a, b);
    thread_local dnnl::stream stream(engine());
    thread_local std::vector<char> scratch;
    if (scratch.size() < p->scratch.get_size() + 64) scratch.resize(p->scratch.get_size() + 64);
    char* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
    p->matmul.execute(stream, {{DNNL_ARG_SRC, {p->a, engine(), const_cast<void*>(a.data)}},
                               {DNNL_ARG_WEIGHTS, {p->b, engine(), const_cast<void*>(b.data)}},
                               {DNNL_ARG_DST, {p->c, engine(), c}},
                               {DNNL_ARG_SCRATCHPAD, {p->scratch, engine(), aligned}}});
    stream.wait();
  } catch (const dnnl::error& e) {
    throw failure("oneDNN", fmt::format("product [{}, {}] x [{}, {}]: {}", m, k, k, n, e.what()),
                  "a build with -DHYSPARSE_ONEDNN=OFF does without it");
  }
}

struct OnednnProduct::Impl {
  dnnl::memory x, w, y;
  dnnl::matmul matmul;
  mutable dnnl::stream stream{engine()};
  int threads = 1;
};

OnednnProduct::OnednnProduct(DType dtype, int64_t m, int64_t n, int64_t k, const void* w, int threads)
    : impl_(std::make_unique<Impl>()) {
  using Desc = dnnl::memory::desc;
  using Tag = dnnl::memory::format_tag;
  const auto type = dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
  const Desc x_desc({m, k}, type, Tag::ab), y_desc({m, n}, type, Tag::ab), any({k, n}, type, Tag::any);
  impl_->threads = threads;
  if (open_mp().set_threads) open_mp().set_threads(threads);
  try {
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(engine(), x_desc, any, y_desc);
#else
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, any, y_desc), engine());
#endif
    impl_->matmul = dnnl::matmul(desc);
    dnnl::memory plain({{k, n}, type, Tag::ba}, engine(), const_cast<void*>(w));
    impl_->w = dnnl::memory(desc.weights_desc(), engine());
    dnnl::reorder(plain, impl_->w).execute(impl_->stream, plain, impl_->w);
    impl_->stream.wait();
    impl_->x = dnnl::memory(x_desc, engine(), nullptr);
    impl_->y = dnnl::memory(y_desc, engine(), nullptr);
  } catch (const dnnl::error& e) {
    throw failure("oneDNN", fmt::format("product [{}, {}] x [{}, {}]: {}", m, k, k, n, e.what()));
  }
}
OnednnProduct::~OnednnProduct() = default;

void OnednnProduct::run(const void* x, void* y) const {
  if (open_mp().set_threads) open_mp().set_threads(impl_->threads);
  impl_->x.set_data_handle(const_cast<void*>(x));
  impl_->y.set_data_handle(y);
  impl_->matmul.execute(impl_->stream,
                        {{DNNL_ARG_SRC, impl_->x}, {DNNL_ARG_WEIGHTS, impl_->w}, {DNNL_ARG_DST, impl_->y}});
  impl_->stream.wait();
}

#else

struct OnednnProduct::Impl {};
OnednnProduct::OnednnProduct(DType, int64_t, int64_t, int64_t, const void*, int) {
  throw failure("oneDNN", "this build does without it");
}
OnednnProduct::~OnednnProduct() = default;
void OnednnProduct::run(const void*, void*) const {}

bool onednn_available(DType) {
  return false;
}

void onednn_multiply(const Matrix&, const Matrix&, int64_t, int64_t, int64_t, float*, int64_t, bool) {
  throw failure("oneDNN", "this build does without it");
}

#endif

}  // namespace hysparse::gemm
