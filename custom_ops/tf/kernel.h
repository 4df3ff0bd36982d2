// The OpKernel of an op for a kind of device: see attention_bodies.h, encoder_bodies.h and
// patch_bodies.h. cpu_kernel.h and gpu_kernel.h define the devices.
#ifndef CUSTOM_OPS_TF_KERNEL_H_
#define CUSTOM_OPS_TF_KERNEL_H_

#include "custom_ops/tf/registration.h"
#include "custom_ops/tf/tensors.h"

namespace vit {

// A `Call` is constructed from a context for each call of the op. `execution` describes how the
// call runs, `check_memory` fails if the device cannot have an output of this size, and `status`
// turns the result of the call into a status.
template <class Body, class Call>
class DeviceKernel : public tensorflow::OpKernel {
 public:
  explicit DeviceKernel(tensorflow::OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, body_.init(c));
  }

  void Compute(tensorflow::OpKernelContext* c) override {
    Arrays inputs, outputs;
    inputs.reserve(c->num_inputs());
    for (int i = 0; i < c->num_inputs(); ++i) inputs.push_back(array_of(c->input(i)));
    OP_REQUIRES_OK(c, body_.check(inputs, &outputs));
    Call call(c);
    for (int i = 0; i < c->num_outputs(); ++i) {
      OP_REQUIRES_OK(c, check_size(outputs[i]));
      OP_REQUIRES_OK(c, call.check_memory(outputs[i]));
      OP_REQUIRES_OK(c, allocate(c, i, &outputs[i]));
    }
    OP_REQUIRES_OK(c, call.status(body_.run(inputs, outputs, call.execution()), Body::kName));
  }

 private:
  Body body_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_TF_KERNEL_H_
