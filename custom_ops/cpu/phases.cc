#include "custom_ops/cpu/phases.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace vit {

namespace {

// The cycles of a chunk of units. Fewer are not worth taking. After the most, about 30 ms, a thread
// asks whether the call has been cancelled.
constexpr double kFewestCycles = 5'000, kMostCycles = 100'000'000;
// The cycles of the largest phase for which a thread is worth waking.
constexpr double kCyclesPerThread = 50'000;
// The first chunk is a 64th of a phase: it is taken before other threads have woken up.
constexpr int64_t kThreads = 32;

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

bool Phases::stays(bool helps) const {
  const ParallelFor& parallel_for = execution_->parallel_for;
  return !parallel_for.stays || parallel_for.stays(parallel_for.pool, helps);
}

bool Phases::work_on(Phase& phase, void* scratch, bool helps) {
  for (int64_t begin, end; phase.schedule.next(&begin, &end);) {
    // After a failure units count as done without being computed, so that all threads leave.
    if (!stopped()) phase.run(begin, end, scratch);
    // The outputs of all units are visible to the thread that counts the last one, and through
    // `current_` to all.
    const int64_t done = __atomic_add_fetch(&phase.done, end - begin, __ATOMIC_ACQ_REL);
    if (done == phase.units) __atomic_add_fetch(&current_, 1, __ATOMIC_RELEASE);
    if (!stays(helps)) return false;
  }
  return true;
}

// Other threads need some 0.1 ms for their units, so a thread first stays on its core: with a
// thread woken up for each phase, an encoder of ViT-B/16 took 120 ms on 2 cores of a virtual
// machine and 204 ms on one (Intel Xeon with AMX, 2026-11-23). Then it lets other threads run,
// whose units it may be waiting for.
bool Phases::wait_for_end_of(int64_t phase, bool helps) const {
  constexpr int kSpins = 2000, kYields = 2000;
  constexpr int kSleepMicroseconds = 50;
  for (int i = 0; __atomic_load_n(&current_, __ATOMIC_ACQUIRE) == phase; ++i) {
    if (i < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    if (!stays(helps)) return false;
    if (i < kSpins + kYields) {
      sched_yield();
    } else {
      usleep(kSleepMicroseconds);
    }
  }
  return true;
}

void Phases::join(bool helps) {
  const int64_t count = static_cast<int64_t>(phases_.size());
  int64_t current = __atomic_load_n(&current_, __ATOMIC_ACQUIRE);
  if (current == count) return;
  void* scratch = scratch_bytes_ ? execution_->allocator.allocate(scratch_bytes_) : nullptr;
  if (scratch_bytes_ && !scratch) __atomic_store_n(&out_of_memory_, true, __ATOMIC_RELAXED);
  while (current < count && work_on(*phases_[static_cast<size_t>(current)], scratch, helps) &&
         wait_for_end_of(current, helps)) {
    current = __atomic_load_n(&current_, __ATOMIC_ACQUIRE);
  }
  if (scratch) execution_->allocator.release(scratch);
}

Result Phases::run(const Execution& execution) {
  execution_ = &execution;
  // As many threads as the largest phase needs: more could only wait.
  int64_t most = 1;
  for (const auto& phase : phases_) {
    scratch_bytes_ = std::max(scratch_bytes_, phase->scratch_bytes);
    most = std::max(most,
                    std::min(phase->units, static_cast<int64_t>(phase->cycles / kCyclesPerThread)));
  }
  const auto body = [](void* self, bool helps) { static_cast<Phases*>(self)->join(helps); };
  const ParallelFor& parallel_for = execution.parallel_for;
  if (!phases_.empty()) parallel_for.run_team(parallel_for.pool, most, body, this);
  return out_of_memory_ ? Result::kOutOfMemory : Result::kOk;
}

}  // namespace vit
