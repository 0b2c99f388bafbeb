#include "capi/handles.h"

#include <pthread.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/error.h"

namespace hysparse::capi {
namespace {

struct Entry {
  HandleKind kind;
  std::shared_ptr<void> object;
  AfterFork after_fork;
  uint64_t process;  // how many forks lie between the first process and the one that made it
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<uintptr_t, Entry> live;
  uintptr_t last = 0;
  uint64_t process = 0;
};

// Never destroyed: at exit, calls of other threads may still run. A fork waits for the lock, so that the
// child finds it free.
Registry& registry() {
  static Registry* const r = [] {
    static Registry* made = new Registry;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] {
                     ++made->process;
                     made->mutex.unlock();
                   });
    return made;
  }();
  return *r;
}
// At load: a fork during another thread's first call would leave the child waiting for a half-made registry.
[[maybe_unused]] const Registry& made_at_load = registry();

const char* name(HandleKind kind) {
  switch (kind) {
    case HandleKind::model:
      return "model";
    case HandleKind::tokenizer:
      return "tokenizer";
    case HandleKind::generation:
      return "generation";
    case HandleKind::engine:
      return "engine";
    case HandleKind::answer:
      return "answer";
  }
  return "object";
}

bool dead(const Registry& r, const Entry& e) {
  return e.after_fork == AfterFork::dead && e.process != r.process;
}

// The entry of a live handle of this kind.
std::unordered_map<uintptr_t, Entry>::iterator find(Registry& r, HandleKind kind, const void* handle) {
  if (!handle) throw expected_error(name(kind), "a handle", "NULL");
  const auto at = r.live.find(reinterpret_cast<uintptr_t>(handle));
  if (at == r.live.end())
    throw input_error(name(kind), reinterpret_cast<uintptr_t>(handle) <= r.last
                                      ? "the handle was freed"
                                      : "not a handle of this library");
  if (at->second.kind != kind)
    throw expected_error(name(kind), fmt::format("a {} handle", name(kind)),
                         fmt::format("a {} handle", name(at->second.kind)));
  return at;
}

}  // namespace

void* add_handle(HandleKind kind, std::shared_ptr<void> object, AfterFork after_fork) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.last += 16;
  r.live.emplace(r.last, Entry{kind, std::move(object), after_fork, r.process});
  return reinterpret_cast<void*>(r.last);
}

std::shared_ptr<void> find_handle(HandleKind kind, const void* handle) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const Entry& e = find(r, kind, handle)->second;
  if (dead(r, e))
    throw input_error(name(kind), "it was made before fork() and cannot be used in the child",
                      "load the model in the child");
  return e.object;
}

void free_handle(HandleKind kind, void* handle) {
  if (!handle) return;
  Registry& r = registry();
  std::shared_ptr<void> object;  // outlives the lock: what it destroys may take its time
  const std::lock_guard lock(r.mutex);
  const auto at = find(r, kind, handle);
  if (dead(r, at->second))
    new std::shared_ptr<void>(std::move(at->second.object));  // its threads are not here to be ended
  else
    object = std::move(at->second.object);
  r.live.erase(at);
}

}  // namespace hysparse::capi
