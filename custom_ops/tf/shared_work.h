// Work that a thread shares with the threads of a pool, of whatever runtime.
#ifndef CUSTOM_OPS_TF_SHARED_WORK_H_
#define CUSTOM_OPS_TF_SHARED_WORK_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/guided_schedule.h"

namespace vit {

// To schedule a task for another thread costs about a microsecond, plus the time until it starts.
// So chunks have at least this many cycles.
constexpr int64_t kCyclesPerChunk = 50'000;
// A call that is cancelled ends when its chunks do: after some 30 ms, unless one unit takes longer.
constexpr int64_t kMostCyclesPerChunk = 100'000'000;

// Whether a call has been cancelled; null if it cannot be.
struct Cancellation {
  bool (*requested)(void* source) = nullptr;
  void* source = nullptr;
};

// The units of one kernel, and a count of the units that are not done.
class SharedWork {
 public:
  SharedWork(const GuidedSchedule& schedule, int64_t total, RangeBody body, void* argument,
             Cancellation cancellation)
      : schedule_(schedule),
        left_(total),
        body_(body),
        argument_(argument),
        cancellation_(cancellation) {}

  // Takes chunks until no chunk is left. Those of a call that has been cancelled are not computed.
  void run_chunks() {
    int64_t done = 0;
    for (int64_t begin, end; schedule_.next(&begin, &end); done += end - begin) {
      if (!cancelled()) body_(argument_, begin, end);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ -= done;
    if (left_ == 0) none_left_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_left_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  // Called only with a chunk: as long as one is not done, the call waits, and the source exists.
  bool cancelled() const {
    return cancellation_.requested && cancellation_.requested(cancellation_.source);
  }

  GuidedSchedule schedule_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  int64_t left_;
  const RangeBody body_;
  void* const argument_;
  const Cancellation cancellation_;
};

// Runs on the calling thread and on as many of `pool_threads` threads as are useful. Each takes
// chunks until no chunk is left. So a thread that is busy with another op does not delay this op:
// when that thread starts, possibly after the call has returned, it finds no chunk. SharedWork
// lives until then. And the calling thread may be one of the pool: it waits only for chunks that a
// running thread has taken. `schedule(task)` passes a function to a thread of the pool.
template <class Schedule>
void run_shared(int64_t pool_threads, const Schedule& schedule, int64_t total, int64_t cost,
                RangeBody body, void* argument, Cancellation cancellation = {}) {
  cost = std::max<int64_t>(cost, 1);
  const int64_t min_chunk = 1 + (kCyclesPerChunk - 1) / cost;
  const int64_t max_chunk = std::max<int64_t>(kMostCyclesPerChunk / cost, 1);
  const int64_t threads = std::max<int64_t>(std::min(pool_threads, total / min_chunk), 1);
  const auto work = std::make_shared<SharedWork>(
      GuidedSchedule(total, threads, min_chunk, max_chunk), total, body, argument, cancellation);
  for (int64_t i = 1; i < threads; ++i) {
    schedule([work] { work->run_chunks(); });
  }
  work->run_chunks();
  work->wait();
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_SHARED_WORK_H_
