// Runs the work inside an op on TensorFlow's threads.
#ifndef CUSTOM_OPS_TF_THREADS_H_
#define CUSTOM_OPS_TF_THREADS_H_

#include <algorithm>
#include <functional>
#include <utility>

#include "custom_ops/cpu/team.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace vit {

// Whether the step that an op belongs to has been cancelled.
inline bool is_cancelled(void* op) {
  auto* manager = static_cast<tensorflow::OpKernelContext*>(op)->cancellation_manager();
  return manager && manager->IsCancelled();
}

// Passes tasks to the threads that the op may use.
inline auto schedule_on_workers(tensorflow::OpKernelContext* op) {
  auto* const workers = op->device()->tensorflow_cpu_worker_threads()->workers;
  return [workers](std::function<void()> task) { workers->Schedule(std::move(task)); };
}

// tf.data limits the threads of an op by GetPerThreadMaxParallelism, by default to one.
inline Team team_of(tensorflow::OpKernelContext* op) {
  const int64_t threads =
      std::min<int64_t>(op->device()->tensorflow_cpu_worker_threads()->num_threads,
                        tensorflow::GetPerThreadMaxParallelism());
  return Team(threads, schedule_on_workers(op), {is_cancelled, op});
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_THREADS_H_
