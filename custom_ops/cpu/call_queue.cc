#include "custom_ops/cpu/call_queue.h"

#include <utility>

#include "custom_ops/cpu/cores.h"

namespace vit {

void CallQueue::run(Task call, Schedule schedule) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (active_ == 0) {
      active_ = 1;
      schedule = nullptr;
    } else {
      waiting_.push_back({std::move(call), schedule});
      if (active_ >= core_count()) return;
      ++active_;
      ++scheduled_;
    }
  }
  if (schedule) return schedule([this] { run_next(); });
  call();
  end_call();
}

void CallQueue::run_next() {
  Task call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --scheduled_;
    call = std::move(waiting_.front().call);
    waiting_.pop_front();
  }
  call();
  end_call();
}

void CallQueue::end_call() {
  Schedule schedule;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int64_t>(waiting_.size()) <= scheduled_) {
      --active_;
      return;
    }
    ++scheduled_;
    schedule = waiting_.front().schedule;
  }
  // Not in this thread, so that other work of the pool gets its turn.
  schedule([this] { run_next(); });
}

}  // namespace vit
