#include "engine/mailbox.h"

#include <algorithm>
#include <iterator>

#include "engine/answer.h"

namespace hysparse {
namespace {

template <class T>
void append(std::vector<T>& to, std::vector<T>&& more) {
  if (to.empty())
    to = std::move(more);
  else
    std::move(more.begin(), more.end(), std::back_inserter(to));
}

void merge(Event& into, Event&& more) {
  append(into.tokens, std::move(more.tokens));
  into.text += more.text;
  append(into.logprobs, std::move(more.logprobs));
  append(into.prompt_logprobs, std::move(more.prompt_logprobs));
  if (more.finish) into.finish = more.finish;
  if (!more.error.empty()) into.error = std::move(more.error);
  if (more.usage) into.usage = more.usage;
}

}  // namespace

void WorkSignal::raise() {
  {
    const std::lock_guard lock(mutex_);
    raised_ = true;
  }
  changed_.notify_all();
}

bool WorkSignal::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return raised_; });
  return std::exchange(raised_, false);
}

void Mailbox::post(Event event) {
  {
    const std::lock_guard lock(mutex_);
    complete_ = complete_ || event.usage.has_value();
    const auto waiting = std::find_if(events_.begin(), events_.end(),
                                      [&](const Event& e) { return e.choice == event.choice; });
    // Usage comes with the very last event: what waits of that choice moves behind the others.
    if (waiting != events_.end() && event.usage) std::rotate(waiting, waiting + 1, events_.end());
    if (waiting == events_.end())
      events_.push_back(std::move(event));
    else
      merge(event.usage ? events_.back() : *waiting, std::move(event));
  }
  changed_.notify_all();
  const std::lock_guard lock(calling_);
  if (on_event_) on_event_();
}

std::optional<Event> Mailbox::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !events_.empty() || complete_; });
  if (events_.empty()) return {};
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

bool Mailbox::done() const {
  const std::lock_guard lock(mutex_);
  return complete_ && events_.empty();
}

void Mailbox::cancel() {
  cancelled_.store(true, std::memory_order_release);
  signal_->raise();
}

void Mailbox::close() {
  cancel();
  const std::lock_guard lock(calling_);
  on_event_ = nullptr;
}

Answer::Answer(RequestId id, std::shared_ptr<Mailbox> mailbox) : id_(id), mailbox_(std::move(mailbox)) {}

Answer::~Answer() {
  mailbox_->close();
}

std::optional<Event> Answer::next(std::chrono::milliseconds timeout) {
  return mailbox_->next(timeout);
}

bool Answer::done() const {
  return mailbox_->done();
}

void Answer::cancel() {
  mailbox_->cancel();
}

}  // namespace hysparse
