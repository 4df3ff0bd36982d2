// The OpKernel for CPUs of an op: see attention_bodies.h, encoder_bodies.h and patch_bodies.h.
#ifndef CUSTOM_OPS_TF_CPU_KERNEL_H_
#define CUSTOM_OPS_TF_CPU_KERNEL_H_

#include "custom_ops/cpu/attention/attention.h"
#include "custom_ops/cpu/encoder/encoder.h"
#include "custom_ops/cpu/patch_embed/patch_embed.h"
#include "custom_ops/tf/registration.h"
#include "custom_ops/tf/tensors.h"
#include "custom_ops/tf/threads.h"

namespace vit {

template <class Body>
class CpuKernel : public tensorflow::OpKernel {
 public:
  explicit CpuKernel(tensorflow::OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, body_.init(c));
  }

  void Compute(tensorflow::OpKernelContext* c) override {
    Arrays inputs, outputs;
    inputs.reserve(c->num_inputs());
    for (int i = 0; i < c->num_inputs(); ++i) inputs.push_back(array_of(c->input(i)));
    OP_REQUIRES_OK(c, body_.check(inputs, &outputs));
    for (int i = 0; i < c->num_outputs(); ++i) OP_REQUIRES_OK(c, allocate(c, i, &outputs[i]));
    const Result result = body_.run(inputs, outputs, execution_of(c));
    OP_REQUIRES(c, !is_cancelled(c),
                absl::CancelledError(absl::StrCat(Body::kName, " was cancelled.")));
    OP_REQUIRES_OK(c, status_of(result, Body::kName));
  }

 private:
  Body body_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_TF_CPU_KERNEL_H_
