// Runs the work inside an op on TensorFlow's threads.
#ifndef CUSTOM_OPS_TF_THREADS_H_
#define CUSTOM_OPS_TF_THREADS_H_

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/guided_schedule.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

// To schedule a task for another thread costs about a microsecond, plus the time until it starts.
// So chunks have at least this many cycles.
constexpr int64_t kCyclesPerChunk = 50'000;

// The units of one kernel, and a count of the units that are not done.
class SharedWork {
 public:
  SharedWork(int64_t total, int64_t threads, int64_t min_chunk, RangeBody body, void* argument)
      : schedule_(total, threads, min_chunk), left_(total), body_(body), argument_(argument) {}

  // Takes chunks until no chunk is left.
  void run_chunks() {
    int64_t done = 0;
    for (int64_t begin, end; schedule_.next(&begin, &end); done += end - begin) {
      body_(argument_, begin, end);
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
  GuidedSchedule schedule_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  int64_t left_;
  const RangeBody body_;
  void* const argument_;
};

// Runs on the calling thread and on as many threads of the pool as are useful. Each takes chunks
// until no chunk is left. So a thread that is busy with another op does not delay this op: when
// that thread starts, possibly after the call has returned, it finds no chunk. SharedWork lives
// until then.
inline void run_on_workers(void* pool, int64_t total, int64_t cost, RangeBody body,
                           void* argument) {
  const auto* workers = static_cast<const tensorflow::DeviceBase::CpuWorkerThreads*>(pool);
  const int64_t min_chunk = 1 + (kCyclesPerChunk - 1) / std::max<int64_t>(cost, 1);
  const int64_t threads = std::min<int64_t>(workers->num_threads, total / min_chunk);
  if (threads <= 1) {
    if (total > 0) body(argument, 0, total);
    return;
  }
  const auto work = std::make_shared<SharedWork>(total, threads, min_chunk, body, argument);
  for (int64_t i = 1; i < threads; ++i) {
    workers->workers->Schedule([work] { work->run_chunks(); });
  }
  work->run_chunks();
  work->wait();
}

inline Execution execution_of(tensorflow::OpKernelContext* context) {
  const ParallelFor workers = {run_on_workers,
                               const_cast<tensorflow::DeviceBase::CpuWorkerThreads*>(
                                   context->device()->tensorflow_cpu_worker_threads())};
  return {workers, heap()};
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_THREADS_H_
