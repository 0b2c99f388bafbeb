// The caller's end of a request.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "engine/request.h"

namespace hysparse {

class Mailbox;  // what the engine's thread and the caller share

// Any thread, one at a time. Dropping it cancels what still runs. It may outlive the engine: a request that
// was running then ended with `cancelled`.
class Answer {
 public:
  Answer(RequestId id, std::shared_ptr<Mailbox> mailbox);
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  RequestId id() const { return id_; }
  // What is new of one choice; waits up to `timeout` for it (zero: looks only). Nothing: the time is over, or
  // all has been taken. Choices take turns in the order in which something new came.
  std::optional<Event> next(std::chrono::milliseconds timeout);
  // Every event, the last with usage, has been taken.
  bool done() const;
  // At the latest after the running step the request holds no memory and computes nothing more; its choices
  // end with `cancelled`, unless they had ended.
  void cancel();

 private:
  const RequestId id_;
  const std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace hysparse
