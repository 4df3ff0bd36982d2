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

// tf.data limits the threads of an op by GetPerThreadMaxParallelism, by default to one.
inline Team team_of(tensorflow::OpKernelContext* op) {
  const auto* workers = op->device()->tensorflow_cpu_worker_threads();
  const int64_t threads =
      std::min<int64_t>(workers->num_threads, tensorflow::GetPerThreadMaxParallelism());
  const auto schedule = [workers](std::function<void()> task) {
    workers->workers->Schedule(std::move(task));
  };
  return Team(threads, schedule, {is_cancelled, op});
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_THREADS_H_
