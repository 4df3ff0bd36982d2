#include "custom_ops/cpu/phases.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace vit {

namespace {

// The cycles of a chunk of units. Fewer are not worth taking. After the most, about 30 ms, a thread
// asks whether the call has been cancelled.
constexpr double kFewestCycles = 5'000, kMostCycles = 100'000'000;
// The first chunk is a 64th of a phase: it is taken before other threads have woken up.
constexpr int64_t kThreads = 32;
// ParallelFor divides a call into shares. Threads join once a share, and find nothing to do in
// later ones, so there must only be more shares than threads.
constexpr int64_t kShares = 1024;

// Waits until `value` differs from `old`. Other threads need some 0.1 ms for their units, so a
// thread first stays on its core: with a thread woken up for each phase, an encoder of ViT-B/16
// took 120 ms on 2 cores of a virtual machine and 204 ms on one (Intel Xeon with AMX, 2026-11-23).
// Then it lets other threads run, whose units it may be waiting for.
void wait_for_change(const int64_t& value, int64_t old) {
  constexpr int kSpins = 2000, kYields = 2000;
  constexpr int kSleepMicroseconds = 50;
  for (int i = 0; __atomic_load_n(&value, __ATOMIC_ACQUIRE) == old; ++i) {
    if (i < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else if (i < kSpins + kYields) {
      sched_yield();
    } else {
      usleep(kSleepMicroseconds);
    }
  }
}

}  // namespace

Phases::Phase::Phase(int64_t units, double unit_cycles, int64_t scratch_bytes)
    : units(units),
      scratch_bytes(scratch_bytes),
      cycles(unit_cycles * static_cast<double>(units)),
      schedule(
          units, kThreads, 1 + static_cast<int64_t>(kFewestCycles / std::max(unit_cycles, 1.0)),
          std::max<int64_t>(static_cast<int64_t>(kMostCycles / std::max(unit_cycles, 1.0)), 1)) {}

bool Phases::stopped() {
  if (__atomic_load_n(&out_of_memory_, __ATOMIC_RELAXED)) return true;
  if (__atomic_load_n(&cancelled_, __ATOMIC_RELAXED)) return true;
  const ParallelFor& parallel_for = execution_->parallel_for;
  if (!parallel_for.is_cancelled || !parallel_for.is_cancelled(parallel_for.pool)) return false;
  __atomic_store_n(&cancelled_, true, __ATOMIC_RELAXED);
  return true;
}

void Phases::work_on(Phase& phase, void* scratch) {
  for (int64_t begin, end; phase.schedule.next(&begin, &end);) {
    // After a failure units count as done without being computed, so that all threads leave.
    if (!stopped()) phase.run(begin, end, scratch);
    // The outputs of all units are visible to the thread that counts the last one, and through
    // `current_` to all.
    const int64_t done = __atomic_add_fetch(&phase.done, end - begin, __ATOMIC_ACQ_REL);
    if (done == phase.units) __atomic_add_fetch(&current_, 1, __ATOMIC_RELEASE);
  }
}

void Phases::join() {
  const int64_t count = static_cast<int64_t>(phases_.size());
  int64_t current = __atomic_load_n(&current_, __ATOMIC_ACQUIRE);
  if (current == count) return;
  void* scratch = scratch_bytes_ ? execution_->allocator.allocate(scratch_bytes_) : nullptr;
  if (scratch_bytes_ && !scratch) __atomic_store_n(&out_of_memory_, true, __ATOMIC_RELAXED);
  while (current < count) {
    work_on(*phases_[static_cast<size_t>(current)], scratch);
    wait_for_change(current_, current);
    current = __atomic_load_n(&current_, __ATOMIC_ACQUIRE);
  }
  if (scratch) execution_->allocator.release(scratch);
}

Result Phases::run(const Execution& execution) {
  execution_ = &execution;
  // As many threads as the largest phase needs: more could only wait.
  double cycles = 0;
  for (const auto& phase : phases_) {
    scratch_bytes_ = std::max(scratch_bytes_, phase->scratch_bytes);
    cycles = std::max(cycles, phase->cycles);
  }
  const auto body = [](void* self, int64_t, int64_t) { static_cast<Phases*>(self)->join(); };
  const ParallelFor& parallel_for = execution.parallel_for;
  if (!phases_.empty()) {
    parallel_for.run(parallel_for.pool, kShares, static_cast<int64_t>(cycles / kShares), body,
                     this);
  }
  return out_of_memory_ ? Result::kOutOfMemory : Result::kOk;
}

}  // namespace vit
