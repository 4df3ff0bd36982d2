// Threads for the calls of the module for NumPy.
#ifndef CUSTOM_OPS_PYTHON_OWN_THREADS_H_
#define CUSTOM_OPS_PYTHON_OWN_THREADS_H_

#include <pybind11/pybind11.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/guided_schedule.h"
#include "custom_ops/cpu/isa.h"

namespace vit {

// The threads of one call. Each takes the next chunk of units when it becomes free.
class Threads {
 public:
  explicit Threads(int count)
      : count_(count > 0 ? count : std::max(1u, std::thread::hardware_concurrency())) {}

  Execution execution() { return {{run, run_team, this, count_}, heap()}; }

 private:
  static void run(void* pool, int64_t total, int64_t cost, RangeBody body, void* argument) {
    // Starting a thread takes about 20 microseconds, which is too slow for less work than this.
    constexpr int64_t kCyclesPerThread = 200000;
    const int64_t useful = static_cast<int64_t>(static_cast<double>(total) *
                                                static_cast<double>(cost) / kCyclesPerThread) +
                           1;
    const int64_t count = std::min<int64_t>({static_cast<Threads*>(pool)->count_, useful, total});
    if (count <= 1) {
      if (total > 0) body(argument, 0, total);
      return;
    }
    GuidedSchedule schedule(total, count, 1);
    run_on(count, [&](bool) {
      for (int64_t begin, end; schedule.next(&begin, &end);) body(argument, begin, end);
    });
  }

  static void run_team(void* pool, int64_t most, TeamBody body, void* argument) {
    run_on(std::min(static_cast<Threads*>(pool)->count_, most),
           [=](bool helps) { body(argument, helps); });
  }

  // Calls body(helps) on so many threads.
  template <class Body>
  static void run_on(int64_t count, const Body& body) {
    std::vector<std::thread> threads;
    try {
      for (int64_t i = 1; i < count; ++i) threads.emplace_back(body, true);
    } catch (const std::exception&) {
      // The system starts no more threads: this thread and the running ones do all units.
    }
    body(false);
    for (std::thread& thread : threads) thread.join();
  }

  const int64_t count_;
};

// Raises a ValueError if VIT_ISA has a value that the kernels would ignore.
inline void check_isa() {
  if (const char* error = isa_error()) throw pybind11::value_error(error);
}

// Returns function(execution) on `count` threads, called without the interpreter lock.
template <class Function>
Result run_on_threads(int count, const Function& function) {
  check_isa();
  Threads threads(count);
  const pybind11::gil_scoped_release release;
  return function(threads.execution());
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_OWN_THREADS_H_
