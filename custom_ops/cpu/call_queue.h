// Long calls run in the order of their arrival, at most one at a time for each core.
//
// A runtime has few threads that start calls. If calls at the same time blocked them, the others
// would wait in the queues of the runtime, which are not in order: with 8 callers of ViT-S/16 on 2
// cores the slowest call in a hundred took 1.8 times as long as half of them.
#ifndef CUSTOM_OPS_CPU_CALL_QUEUE_H_
#define CUSTOM_OPS_CPU_CALL_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace vit {

class CallQueue {
 public:
  using Task = std::function<void()>;
  // Passes a task to a thread of a pool, which starts it at any time.
  using Schedule = std::function<void(Task)>;

  // Runs `call` before it returns if no call is active. Otherwise the call runs on a thread of its
  // pool or of the pool of another call, after the calls that came before it have started.
  void run(Task call, Schedule schedule);

 private:
  struct Waiting {
    Task call;
    Schedule schedule;
  };

  // Runs the first call that waits.
  void run_next();
  // Schedules a thread for the next call, in place of one that has ended.
  void end_call();

  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  // Calls that run or have a thread scheduled, and the latter alone.
  int64_t active_ = 0, scheduled_ = 0;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_CALL_QUEUE_H_
