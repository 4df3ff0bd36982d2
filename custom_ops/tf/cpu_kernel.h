// The OpKernels of ops for CPUs.
#ifndef CUSTOM_OPS_TF_CPU_KERNEL_H_
#define CUSTOM_OPS_TF_CPU_KERNEL_H_

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "custom_ops/cpu/attention/cpu_attention.h"
#include "custom_ops/cpu/call_queue.h"
#include "custom_ops/cpu/encoder/cpu_encoder.h"
#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"
#include "custom_ops/cpu/team.h"
#include "custom_ops/tf/device_kernel.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/util/work_sharder.h"

namespace vit {

// Whether the step that an op belongs to has been cancelled.
inline bool is_cancelled(tensorflow::OpKernelContext* op) {
  auto* const manager = op->cancellation_manager();
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
  return Team(threads, schedule_on_workers(op), [op] { return is_cancelled(op); });
}

template <class Body>
class QueuedKernel;

class CpuCall {
 public:
  template <class Body>
  using Kernel = std::conditional_t<std::is_base_of_v<EncoderBody, Body>, QueuedKernel<Body>,
                                    DeviceKernel<Body, CpuCall>>;

  explicit CpuCall(tensorflow::OpKernelContext* context)
      : context_(context), team_(team_of(context)) {}

  // As long as this object exists.
  Execution execution() { return {team_.parallel_for(), heap()}; }

  template <class Body>
  static void restrict_types(tensorflow::register_kernel::Name&) {}

  // Fails if the bytes exceed the memory of this machine.
  Status check_memory(const Array& array) const {
    static const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
    if (array.bytes() <= memory) return {};
    return invalid(array.name, " of shape ", text(array.dims), " would take ", size_of(array.type),
                   " x ", array.elements(), " bytes, more than the ", memory,
                   " bytes of this machine's memory.");
  }

  Status status(Result result, const char* op) const {
    if (is_cancelled(context_)) return error(Code::kCancelled, op, " was cancelled.");
    return status_of(result, op);
  }

 private:
  tensorflow::OpKernelContext* const context_;
  Team team_;
};

// The OpKernel of an op whose calls take long.
template <class Body>
class QueuedKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit QueuedKernel(tensorflow::OpKernelConstruction* c) : AsyncOpKernel(c) {
    const TensorflowAttributes attributes(c);
    OP_REQUIRES_OK(c, absl_status(body_.init(&attributes)));
  }

  void ComputeAsync(tensorflow::OpKernelContext* c, DoneCallback done) override {
    const auto call = std::make_shared<PreparedCall>(c);
    OP_REQUIRES_OK_ASYNC(c, prepare(body_, call->cpu, c, &call->inputs, &call->outputs), done);
    const auto run = [=] {
      const Result result = body_.run(call->inputs, call->outputs, call->cpu.execution());
      OP_REQUIRES_OK_ASYNC(c, absl_status(call->cpu.status(result, Body::kName)), done);
      done();
    };
    // It is never destroyed: calls may still run when the process ends.
    static CallQueue& queue = *new CallQueue;
    queue.run(run, schedule_on_workers(c));
  }

 private:
  struct PreparedCall {
    explicit PreparedCall(tensorflow::OpKernelContext* c) : cpu(c) {}

    CpuCall cpu;
    Arrays inputs, outputs;
  };

  Body body_;
};

template <class... Bodies>
bool register_for_cpu(OpList<Bodies...> ops) {
  return register_kernels<CpuCall>(tensorflow::DEVICE_CPU, ops);
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_CPU_KERNEL_H_
