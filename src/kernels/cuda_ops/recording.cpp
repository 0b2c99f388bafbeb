#include "kernels/cuda_ops/recording.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda_ops/resident.h"

namespace hysparse::cuda_calls {
namespace {

constexpr size_t kAlign = 256;
size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// The step that this thread is in.
struct Running {
  const RepeatedStep& step;
  const std::byte* device;
  bool other = false;  // it asked for a table that is not the step's
};
thread_local Running* running = nullptr;

class RunningScope {
 public:
  explicit RunningScope(Running& r) { running = &r; }
  ~RunningScope() { running = nullptr; }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;
};

}  // namespace

const void* step_table(const void* host, size_t bytes) {
  if (!running) return nullptr;
  size_t at = 0;
  for (const RepeatedStep::Table& table : running->step.tables) {
    if (table.host == host && bytes <= table.bytes) return running->device + at;
    at += aligned(table.bytes);
  }
  running->other = true;
  return nullptr;
}

Recorder::~Recorder() {
  entries_.clear();  // before the pool that they took from
}

Recorder::Entry& Recorder::entry_of(const RepeatedStep& step) {
  for (const auto& e : entries_)
    if (e->key == step.key) return *e;
  if (entries_.size() >= kEntries)
    entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                    [](const auto& a, const auto& b) { return a->used < b->used; }));
  auto entry = std::make_unique<Entry>();
  entry->key = step.key;
  size_t bytes = 0;
  for (const RepeatedStep::Table& table : step.tables) bytes += aligned(table.bytes);
  entry->host.resize(bytes);
  entry->device = pool_.take(bytes);
  entries_.push_back(std::move(entry));
  return *entries_.back();
}

void Recorder::upload(Entry& entry, const RepeatedStep& step) {
  size_t at = 0;
  for (const RepeatedStep::Table& table : step.tables) {
    HYSPARSE_CHECK(at + aligned(table.bytes) <= entry.host.size(), "a repeated step with longer tables");
    if (table.bytes > 0) std::memcpy(entry.host.data() + at, table.host, table.bytes);
    at += aligned(table.bytes);
  }
  HYSPARSE_CHECK(at == entry.host.size(), "a repeated step with other tables");
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.upload(entry.device.get(), entry.host.data(), entry.host.size(), nullptr), "GPU memory");
}

void Recorder::record(Entry& entry, const RepeatedStep& step, const std::function<void()>& body) {
  const CudaLibrary& cuda = cuda_library();
  if (!stream_) cuda.check(cuda.recorder_create(&stream_), "recording");
  Running now{step, static_cast<const std::byte*>(entry.device.get())};
  hysparse_cuda_graph* graph = nullptr;
  cuda.check(cuda.record_begin(stream_), "recording");
  try {
    const RunningScope scope(now);
    const CudaStreamScope to(stream_);
    body();
  } catch (...) {
    cuda.record_end(stream_, nullptr);
    entry.state = State::plain;
    throw;
  }
  cuda.check(cuda.record_end(stream_, &graph), "recording");
  entry.graph = {graph, [](hysparse_cuda_graph* g) { cuda_library().graph_destroy(g); }};
  HYSPARSE_CHECK(!now.other, "a step that repeats asked for other tables than before");
  entry.state = State::recorded;
}

void Recorder::run(const RepeatedStep& step, const std::function<void()>& body) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_of(step);
  entry.used = ++clock_;
  if (entry.state == State::plain) return body();
  upload(entry, step);
  if (entry.state == State::fresh) {
    Running now{step, static_cast<const std::byte*>(entry.device.get())};
    {
      const RunningScope scope(now);
      body();
    }
    entry.state = now.other ? State::plain : State::ready;
    return;
  }
  if (entry.state == State::ready) record(entry, step, body);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.graph_launch(entry.graph.get(), nullptr), "a recorded step");
}

}  // namespace hysparse::cuda_calls
