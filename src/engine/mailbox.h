// Between the engine's thread and whoever waits for an answer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/request.h"

namespace hysparse {

// Wakes an engine that has nothing to do. Shared by all its mailboxes, so that a request may outlive it.
class WorkSignal {
 public:
  void raise();
  // True when it was raised since the last wait.
  bool wait(std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

class Mailbox {
 public:
  Mailbox(std::shared_ptr<WorkSignal> signal, std::function<void()> on_event)
      : signal_(std::move(signal)), on_event_(std::move(on_event)) {}

  // The engine's side. Runs together with what waits of the same choice.
  void post(Event event);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // The caller's side.
  std::optional<Event> next(std::chrono::milliseconds timeout);
  bool done() const;
  void cancel();
  void close();  // cancel(); from the return on, on_event is not called

 private:
  const std::shared_ptr<WorkSignal> signal_;
  std::mutex calling_;  // held while on_event_ runs
  std::function<void()> on_event_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool complete_ = false;  // the event with usage was posted
};

}  // namespace hysparse
