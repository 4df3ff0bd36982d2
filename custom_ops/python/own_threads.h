// Threads for the calls of the module for NumPy.
#ifndef CUSTOM_OPS_PYTHON_OWN_THREADS_H_
#define CUSTOM_OPS_PYTHON_OWN_THREADS_H_

#include <pybind11/pybind11.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/guided_schedule.h"
#include "custom_ops/cpu/cores.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/python/checked_call.h"

namespace vit {

// The number of threads that an argument asks for: 0 asks for one per core of this process.
inline int64_t thread_count(const py::object& threads) {
  // Starting more takes longer than most calls, and a larger number is a mistake.
  constexpr int64_t kMost = 1024;
  int64_t count = -1;
  try {
    count = threads.cast<int64_t>();
  } catch (const py::cast_error&) {
  }
  if (count < 0 || count > kMost) {
    throw py::value_error("threads must be 0, for one per core, or a number of threads up to " +
                          std::to_string(kMost) + ". Received: " + repr(threads) + ".");
  }
  return count ? count : core_count();
}

// The threads of one call. Each takes the next chunk of units when it becomes free.
class Threads {
 public:
  explicit Threads(int64_t count) : count_(count) {}

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

// While it lives, this thread and the threads that it starts read subnormal numbers as 0 and write
// 0 in their place, as TensorFlow's threads do. Without it the kernels of the instruction sets
// would differ: exp2 of AVX-512 has subnormal results, which the others replace by 0.
class SubnormalsAreZero {
#if defined(__x86_64__)
 public:
  SubnormalsAreZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kReadAsZero); }
  ~SubnormalsAreZero() { _mm_setcsr(saved_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  // Bits of the register MXCSR.
  static constexpr unsigned kFlushToZero = 1u << 15, kReadAsZero = 1u << 6;

  const unsigned saved_;
#else
 public:
  SubnormalsAreZero() {}
#endif
};

// Raises a ValueError if VIT_ISA has a value that the kernels would ignore.
inline void check_isa() {
  if (const char* error = isa_error()) throw pybind11::value_error(error);
}

// Calls function(execution) on `count` threads without the interpreter lock.
template <class Function>
Result run_on_threads(const py::object& count, const Function& function) {
  check_isa();
  Threads threads(thread_count(count));
  const pybind11::gil_scoped_release release;
  const SubnormalsAreZero subnormals;
  return function(threads.execution());
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_OWN_THREADS_H_
