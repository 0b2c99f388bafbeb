// Steps that repeat, as CUDA graphs: the first step of a key runs as it is issued, the second is recorded,
// and from then on the recording runs again over the tables of the day.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda_ops/library.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

class BlockPool;

class Recorder {
 public:
  explicit Recorder(BlockPool& pool) : pool_(pool) {}
  ~Recorder();
  void run(const RepeatedStep& step, const std::function<void()>& body);

 private:
  static constexpr size_t kEntries = 64;
  enum class State {
    fresh,
    plain,  // asks for other tables or for the host: it stays as it is
    ready,  // to be recorded
    recorded
  };
  struct Entry {
    uint64_t key = 0;
    State state = State::fresh;
    std::vector<std::byte> host;  // all tables, one after the other
    std::shared_ptr<void> device;
    std::shared_ptr<hysparse_cuda_graph> graph;
    uint64_t used = 0;
  };
  Entry& entry_of(const RepeatedStep& step);
  void upload(Entry& entry, const RepeatedStep& step);
  void record(Entry& entry, const RepeatedStep& step, const std::function<void()>& body);

  BlockPool& pool_;
  std::vector<std::unique_ptr<Entry>> entries_;
  hysparse_stream stream_ = nullptr;
  uint64_t clock_ = 0;
  std::mutex mutex_;
};

// Where the running step's table that the host has at `host` lies on the device; null outside such a step. A
// table that is not of the step makes the step one that cannot be recorded.
const void* step_table(const void* host, size_t bytes);

}  // namespace hysparse::cuda_calls
