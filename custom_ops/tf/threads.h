// Runs the work inside an op on TensorFlow's threads.
#ifndef CUSTOM_OPS_TF_THREADS_H_
#define CUSTOM_OPS_TF_THREADS_H_

#include "custom_ops/tf/shared_work.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace vit {

// Whether the step that an op belongs to has been cancelled.
inline bool is_cancelled(void* op) {
  auto* manager = static_cast<tensorflow::OpKernelContext*>(op)->cancellation_manager();
  return manager && manager->IsCancelled();
}

// tf.data limits the threads of an op by GetPerThreadMaxParallelism, by default to one.
inline void run_on_workers(void* op, int64_t total, int64_t cost, RangeBody body, void* argument) {
  const auto* workers =
      static_cast<tensorflow::OpKernelContext*>(op)->device()->tensorflow_cpu_worker_threads();
  const int64_t threads =
      std::min<int64_t>(workers->num_threads, tensorflow::GetPerThreadMaxParallelism());
  const auto schedule = [workers](auto&& task) { workers->workers->Schedule(task); };
  run_shared(threads, schedule, total, cost, body, argument, {is_cancelled, op});
}

inline Execution execution_of(tensorflow::OpKernelContext* context) {
  return {{run_on_workers, context, is_cancelled}, heap()};
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_THREADS_H_
