#include "engine/engine_thread.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace hysparse {

using namespace std::chrono_literals;

struct EngineThread::Impl {
  explicit Impl(Engine& engine) : engine(engine), thread([this] { run(); }) {}

  void run() {
    try {
      while (!stopping.load())
        if (!engine.step()) engine.wait(100ms);
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      failure = e.what();
    }
  }

  Engine& engine;
  std::atomic<bool> stopping{false};
  mutable std::mutex mutex;
  std::string failure;
  std::thread thread;  // last: it uses the others
};

EngineThread::EngineThread(Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}

EngineThread::~EngineThread() {
  stop();
}

void EngineThread::stop() {
  impl_->stopping = true;
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

bool EngineThread::healthy(double seconds) const {
  const auto age = std::chrono::steady_clock::now() - impl_->engine.stats().last_progress;
  return failure().empty() && std::chrono::duration<double>(age).count() <= seconds;
}

}  // namespace hysparse
