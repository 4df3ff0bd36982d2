// Runs the work inside an op on TensorFlow's threads.
#ifndef CUSTOM_OPS_TF_THREADS_H_
#define CUSTOM_OPS_TF_THREADS_H_

#include "custom_ops/tf/shared_work.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

inline void run_on_workers(void* pool, int64_t total, int64_t cost, RangeBody body,
                           void* argument) {
  const auto* workers = static_cast<const tensorflow::DeviceBase::CpuWorkerThreads*>(pool);
  const auto schedule = [workers](auto&& task) { workers->workers->Schedule(task); };
  run_shared(workers->num_threads, schedule, total, cost, body, argument);
}

inline Execution execution_of(tensorflow::OpKernelContext* context) {
  const ParallelFor workers = {run_on_workers,
                               const_cast<tensorflow::DeviceBase::CpuWorkerThreads*>(
                                   context->device()->tensorflow_cpu_worker_threads())};
  return {workers, heap()};
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_THREADS_H_
