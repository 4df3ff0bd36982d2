// The threads of a call on a thread pool of any runtime: one for each free core.
//
// The library counts its calls and their threads. A call may use its share of the cores: their
// number divided by the number of calls, rounded up. Threads that help start while fewer threads
// than cores work for calls, and leave between two chunks when their call has more than its
// share. So a lone call uses all cores, and calls at the same time do not disturb each other by
// threads that wait for a core. Thus the last unit of a phase is not delayed either.
#ifndef CUSTOM_OPS_CPU_TEAM_H_
#define CUSTOM_OPS_CPU_TEAM_H_

#include <functional>
#include <memory>

#include "custom_ops/cc/execution.h"

namespace vit {

// The threads of one call. The calling thread may be one of the pool: it waits only for threads
// that have started to help.
class Team {
 public:
  // `threads`: the most threads that work on the call at the same time. `schedule` passes a task to
  // a thread of the pool, which may start it at any time, also after the call. `is_cancelled`:
  // whether the call has been cancelled; null if it cannot be.
  Team(int64_t threads, std::function<void(std::function<void()>)> schedule,
       std::function<bool()> is_cancelled = nullptr);

  // For as long as the team exists, and for one call at a time.
  ParallelFor parallel_for();

 private:
  class Work;

  void run(int64_t total, int64_t cost, RangeBody body, void* argument);
  void run_team(int64_t most, TeamBody body, void* argument);
  bool stays(bool helps);

  const int64_t threads_;
  const std::function<void(std::function<void()>)> schedule_;
  const std::function<bool()> is_cancelled_;
  std::shared_ptr<Work> work_;
};

// The calls and their threads now, for tests.
struct Load {
  int64_t calls, threads;
};
Load current_load();

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_TEAM_H_
