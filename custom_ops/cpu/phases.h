// Kernels that run one after the other on threads that stay for all of them.
//
// A parallel loop for each kernel would wake the threads each time, which takes longer than a short
// kernel. Here a thread that joins works on the current phase, and goes on with the next one as
// soon as all units of the phase are done. A thread may join and leave between units at any time:
// nobody waits for a thread that has not taken units.
#ifndef CUSTOM_OPS_CPU_PHASES_H_
#define CUSTOM_OPS_CPU_PHASES_H_

#include <stdint.h>

#include <memory>
#include <vector>

#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/guided_schedule.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

class Phases {
 public:
  // Appends a phase, which starts when all phases before it are done. The problem is copied.
  template <class Problem>
  void add(const Kernel<Problem>& kernel, const Problem& problem) {
    if (kernel.units(problem) == 0) return;
    phases_.push_back(std::make_unique<PhaseOf<Problem>>(kernel, problem));
  }

  // Runs all phases, once. The outputs have the same bits for any number of threads. They are
  // undefined if the call was cancelled or memory was missing.
  Result run(const Execution& execution);

 private:
  struct Phase {
    Phase(int64_t units, double unit_cycles, int64_t scratch_bytes);
    virtual ~Phase() = default;
    virtual void run(int64_t begin, int64_t end, void* scratch) const = 0;

    const int64_t units, scratch_bytes;
    const double cycles;  // of all units
    GuidedSchedule schedule;
    int64_t done = 0;  // atomic
  };

  template <class Problem>
  struct PhaseOf : Phase {
    PhaseOf(const Kernel<Problem>& kernel, const Problem& problem)
        : Phase(kernel.units(problem), kernel.unit_cycles(problem), kernel.scratch_bytes(problem)),
          kernel(kernel),
          problem(problem) {}
    void run(int64_t begin, int64_t end, void* scratch) const override {
      kernel.run(problem, begin, end, scratch);
    }

    const Kernel<Problem> kernel;
    const Problem problem;
  };

  // Works until all phases are done, or until the thread shall not go on.
  void join(bool helps);
  // These two return whether the thread shall go on.
  bool work_on(Phase& phase, void* scratch, bool helps);
  bool wait_for_end_of(int64_t phase, bool helps) const;
  bool stays(bool helps) const;
  bool stopped();

  std::vector<std::unique_ptr<Phase>> phases_;
  const Execution* execution_ = nullptr;
  int64_t scratch_bytes_ = 0;
  // Atomic.
  int64_t current_ = 0;
  bool out_of_memory_ = false, cancelled_ = false;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PHASES_H_
