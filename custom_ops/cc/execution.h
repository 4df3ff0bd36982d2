// How a call runs: on which threads, and where its scratch memory comes from.
#ifndef CUSTOM_OPS_CC_EXECUTION_H_
#define CUSTOM_OPS_CC_EXECUTION_H_

#include <stdint.h>

namespace vit {

using RangeBody = void (*)(void* argument, int64_t begin, int64_t end);
// `helps` is false on the thread of the call, and true on the threads that help it.
using TeamBody = void (*)(void* argument, bool helps);

// The threads of a call. All functions get `pool`.
struct ParallelFor {
  // Runs body(argument, begin, end) on ranges that together cover [0, total) exactly once, possibly
  // in parallel on several threads, and returns when all are done. `cost` is the approximate number
  // of cycles of one unit.
  void (*run)(void* pool, int64_t total, int64_t cost, RangeBody body, void* argument);
  // Runs body(argument, false) on the calling thread and, at the same time, body(argument, true) on
  // others, at most `most` threads in all. A thread may come late, or again after it has left.
  // Returns when all have left.
  void (*run_team)(void* pool, int64_t most, TeamBody body, void* argument);
  void* pool;
  // The most threads that work on a call at the same time.
  int64_t threads;
  // Whether the call has been cancelled, so that results are not wanted any more; null if it cannot
  // be.
  bool (*is_cancelled)(void* pool) = nullptr;
  // The body of a team asks this between two chunks: whether its thread shall go on. False
  // tells a thread that helps that other calls need its core. Null: always true.
  bool (*stays)(void* pool, bool helps) = nullptr;
};

// Runs everything on the calling thread.
ParallelFor serial();

// Allocates memory aligned to 64 bytes; returns null if there is not enough. Several threads may
// call it at the same time.
struct Allocator {
  void* (*allocate)(int64_t bytes);
  void (*release)(void* memory);
};

// The allocator of the C library.
Allocator heap();

enum class Result : int {
  kOk = 0,
  kOutOfMemory = 1,  // scratch could not be allocated; outputs are undefined
};

// On the CPU. custom_ops/cuda/cuda_execution.h has the same for a GPU.
struct Execution {
  using Result = vit::Result;

  ParallelFor parallel_for;
  Allocator allocator;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_EXECUTION_H_
