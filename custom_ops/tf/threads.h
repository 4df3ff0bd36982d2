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
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace vit {

// To schedule a task for another thread costs about a microsecond, plus the time until it starts.
// So chunks have at least this many cycles.
constexpr int64_t kCyclesPerChunk = 50'000;
// A call that is cancelled ends when its chunks do: after some 30 ms at most.
constexpr int64_t kMostCyclesPerChunk = 100'000'000;

// The units of one kernel, and a count of the units that are not done.
class SharedWork {
 public:
  // After `cancelled`, which may be null, has become true, no further unit is computed.
  SharedWork(const GuidedSchedule& schedule, int64_t total, RangeBody body, void* argument,
             tensorflow::CancellationManager* cancelled)
      : schedule_(schedule),
        left_(total),
        body_(body),
        argument_(argument),
        cancelled_(cancelled) {}

  // Takes chunks until no chunk is left.
  void run_chunks() {
    int64_t done = 0;
    for (int64_t begin, end; schedule_.next(&begin, &end); done += end - begin) {
      // Only now is it certain that the op still waits, and that `cancelled_` exists.
      if (!cancelled_ || !cancelled_->IsCancelled()) body_(argument_, begin, end);
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
  tensorflow::CancellationManager* const cancelled_;
};

// Runs on the calling thread and on as many threads of the pool as are useful, and allowed: tf.data
// limits the threads of an op by GetPerThreadMaxParallelism. Each takes chunks until no chunk is
// left. So a thread that is busy with another op does not delay this op: when that thread starts,
// possibly after the call has returned, it finds no chunk. SharedWork lives until then.
inline void run_on_workers(void* op, int64_t total, int64_t cost, RangeBody body, void* argument) {
  auto* const context = static_cast<tensorflow::OpKernelContext*>(op);
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  cost = std::max<int64_t>(cost, 1);
  const int64_t min_chunk = 1 + (kCyclesPerChunk - 1) / cost;
  const int64_t threads =
      std::min<int64_t>({workers->num_threads, tensorflow::GetPerThreadMaxParallelism(),
                         std::max<int64_t>(total / min_chunk, 1)});
  const GuidedSchedule schedule(total, threads, min_chunk,
                                std::max<int64_t>(kMostCyclesPerChunk / cost, 1));
  const auto work = std::make_shared<SharedWork>(schedule, total, body, argument,
                                                 context->cancellation_manager());
  for (int64_t i = 1; i < threads; ++i) {
    workers->workers->Schedule([work] { work->run_chunks(); });
  }
  work->run_chunks();
  work->wait();
}

inline Execution execution_of(tensorflow::OpKernelContext* context) {
  return {{run_on_workers, context}, heap()};
}

// The status of an op whose kernel returned `result`.
inline absl::Status status_of(const tensorflow::OpKernelContext* context, Result result,
                              const char* op) {
  if (context->cancellation_manager() && context->cancellation_manager()->IsCancelled()) {
    return absl::CancelledError(absl::StrCat(op, " was cancelled."));
  }
  if (result == Result::kOk) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      op, " could not allocate its scratch memory. Use a smaller batch, or fewer threads."));
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_THREADS_H_
