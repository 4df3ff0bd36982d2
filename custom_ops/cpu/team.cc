#include "custom_ops/cpu/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "custom_ops/cc/guided_schedule.h"
#include "custom_ops/cpu/cores.h"

namespace vit {

namespace {

// To schedule a task for another thread costs about a microsecond, plus the time until it starts.
// So chunks have at least this many cycles.
constexpr int64_t kCyclesPerChunk = 50'000;
// A call that is cancelled ends when its chunks do: after some 30 ms, unless one unit takes longer.
constexpr int64_t kMostCyclesPerChunk = 100'000'000;

std::atomic<int64_t> calls{0};
// Of all calls, with the threads that are scheduled to help.
std::atomic<int64_t> busy{0};

// The most threads that a call may have.
int64_t share() {
  const int64_t cores = core_count(), count = std::max<int64_t>(calls, 1);
  return (cores + count - 1) / count;
}

// Counts one more thread, unless each core has one.
bool take_core() {
  int64_t now = busy;
  while (now < core_count()) {
    if (busy.compare_exchange_weak(now, now + 1)) return true;
  }
  return false;
}

}  // namespace

// A body that threads run. Tasks that start after the end of the call find that it has ended.
class Team::Work {
 public:
  Work(int64_t most, TeamBody body, void* argument)
      : most_(most), body_(body), argument_(argument) {
    ++calls;
    ++busy;
  }

  // Counts a thread that shall be scheduled; false if there shall be no more.
  bool add() {
    if (threads_ >= std::min(most_, share()) || !take_core()) return false;
    ++threads_;
    const std::lock_guard<std::mutex> lock(mutex_);
    ++scheduled_;
    return true;
  }

  void help() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ended_) return;
      --scheduled_;
      ++helping_;
    }
    body_(argument_, true);
    --busy;
    --threads_;
    for (int64_t count = leaving_; count > 0;) {
      if (leaving_.compare_exchange_weak(count, count - 1)) break;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    --helping_;
    if (helping_ == 0) none_helps_.notify_all();
  }

  // Whether a thread that helps shall go on. As many leave as are too many.
  bool goes_on() {
    int64_t leaving = leaving_;
    if (threads_ - leaving <= share()) return true;
    return !leaving_.compare_exchange_strong(leaving, leaving + 1);
  }

  // Waits for the threads that help.
  void end() {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_ = true;
    busy -= 1 + scheduled_;
    --calls;
    // `wait` without a time would need libstdc++ 12, which systems of glibc 2.34 do not have.
    while (helping_ > 0) none_helps_.wait_for(lock, std::chrono::hours(1));
  }

 private:
  const int64_t most_;
  const TeamBody body_;
  void* const argument_;
  std::atomic<int64_t> threads_{1};  // with the calling one and those that are scheduled
  std::atomic<int64_t> leaving_{0};
  std::mutex mutex_;
  std::condition_variable none_helps_;
  int64_t scheduled_ = 0, helping_ = 0;
  bool ended_ = false;
};

Team::Team(int64_t threads, std::function<void(std::function<void()>)> schedule,
           std::function<bool()> is_cancelled)
    : threads_(std::max<int64_t>(std::min(threads, core_count()), 1)),
      schedule_(std::move(schedule)),
      is_cancelled_(std::move(is_cancelled)) {}

ParallelFor Team::parallel_for() {
  return {[](void* team, int64_t total, int64_t cost, RangeBody body, void* argument) {
            static_cast<Team*>(team)->run(total, cost, body, argument);
          },
          [](void* team, int64_t most, TeamBody body, void* argument) {
            static_cast<Team*>(team)->run_team(most, body, argument);
          },
          this,
          threads_,
          [](void* team) {
            const std::function<bool()>& is_cancelled = static_cast<Team*>(team)->is_cancelled_;
            return is_cancelled && is_cancelled();
          },
          [](void* team, bool helps) { return static_cast<Team*>(team)->stays(helps); }};
}

void Team::run(int64_t total, int64_t cost, RangeBody body, void* argument) {
  cost = std::max<int64_t>(cost, 1);
  const int64_t min_chunk = 1 + (kCyclesPerChunk - 1) / cost;
  const int64_t max_chunk = std::max<int64_t>(kMostCyclesPerChunk / cost, 1);
  const int64_t threads = std::max<int64_t>(std::min(threads_, total / min_chunk), 1);
  struct Ranges {
    GuidedSchedule schedule;
    const RangeBody body;
    void* const argument;
    const ParallelFor threads;

    static void take(void* ranges, bool helps) {
      Ranges& self = *static_cast<Ranges*>(ranges);
      const ParallelFor& threads = self.threads;
      for (int64_t begin, end; self.schedule.next(&begin, &end);) {
        // The chunks of a call that has been cancelled are not computed.
        if (!threads.is_cancelled(threads.pool)) self.body(self.argument, begin, end);
        if (!threads.stays(threads.pool, helps)) return;
      }
    }
  } ranges{GuidedSchedule(total, threads, min_chunk, max_chunk), body, argument, parallel_for()};
  // Short work is no call: its thread is free before another one could leave.
  if (total / min_chunk <= 1) return Ranges::take(&ranges, false);
  run_team(threads, Ranges::take, &ranges);
}

void Team::run_team(int64_t most, TeamBody body, void* argument) {
  work_ = std::make_shared<Work>(std::min(most, threads_), body, argument);
  stays(false);
  body(argument, false);
  work_->end();
  work_.reset();
}

bool Team::stays(bool helps) {
  if (!work_) return true;
  if (helps) return work_->goes_on();
  while (work_->add()) schedule_([work = work_] { work->help(); });
  return true;
}

Load current_load() { return {calls, busy}; }

}  // namespace vit
