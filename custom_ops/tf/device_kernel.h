// The OpKernel of an op for a kind of device, and its registration. cpu_kernel.h and gpu_ops.cc
// define the devices.
//
// A process can load this library twice: from the package and from an exported SavedModel.
// TensorFlow accepts a second registration of the same op. But after REGISTER_KERNEL_BUILDER from
// both copies every call of the op fails ("Multiple OpKernel registrations match NodeDef"). So the
// kernels of the first copy run. A later copy, which may be newer or for other devices, adds the
// kernels that the first one lacks: op by op, and all attention ops of a device or none.
#ifndef CUSTOM_OPS_TF_DEVICE_KERNEL_H_
#define CUSTOM_OPS_TF_DEVICE_KERNEL_H_

#include <map>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "custom_ops/cc/op_lists.h"
#include "custom_ops/tf/tensorflow_types.h"
#include "tensorflow/core/framework/kernel_def.pb.h"

namespace vit {

// Checks the inputs and allocates the outputs of a call.
template <class Body, class Call>
absl::Status prepare(const Body& body, const Call& call, tensorflow::OpKernelContext* c,
                     Arrays* inputs, Arrays* outputs) {
  inputs->resize(c->num_inputs());
  for (int i = 0; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(absl_status(get_array(c->input(i), &(*inputs)[i])));
  }
  TF_RETURN_IF_ERROR(absl_status(check_call(body, *inputs, outputs)));
  for (int i = 0; i < c->num_outputs(); ++i) {
    TF_RETURN_IF_ERROR(absl_status(call.check_memory((*outputs)[i])));
    TF_RETURN_IF_ERROR(allocate(c, i, &(*outputs)[i]));
  }
  return absl::OkStatus();
}

// A `Call` is constructed from a context for each call of the op. `execution` describes how the
// call runs, `restrict_types` leaves out types that the device has no kernels for, `check_memory`
// fails if the device cannot have an output of this size, and `status`
// turns the result of the call into a status.
template <class Body, class Call>
class DeviceKernel : public tensorflow::OpKernel {
 public:
  explicit DeviceKernel(tensorflow::OpKernelConstruction* c) : OpKernel(c) {
    const TensorflowAttributes attributes(c);
    OP_REQUIRES_OK(c, absl_status(body_.init(&attributes)));
  }

  void Compute(tensorflow::OpKernelContext* c) override {
    Call call(c);
    Arrays inputs, outputs;
    OP_REQUIRES_OK(c, prepare(body_, call, c, &inputs, &outputs));
    const auto result = body_.run(inputs, outputs, call.execution());
    OP_REQUIRES_OK(c, absl_status(call.status(result, Body::kName)));
  }

 private:
  Body body_;
};

// Whether a kernel of this op is registered for this kind of device.
inline bool has_kernel(const std::string& op, const std::string& device) {
  return absl::c_any_of(
      tensorflow::GetRegisteredKernelsForOp(op).kernel(),
      [&](const tensorflow::KernelDef& kernel) { return kernel.device_type() == device; });
}

// Whether no other copy of this library had kernels of this op for this kind of device. The
// attention ops belong together, because the gradients and taps read the statistics of
// VitAttention, and another copy may define them in another way. Each copy has its own map, because
// the library is compiled with -fvisibility=hidden.
inline bool is_first_copy(std::string op, const std::string& device) {
  if (op.rfind("VitAttention", 0) == 0) op = "VitAttention";
  static std::map<std::pair<std::string, std::string>, bool> known;
  const auto [entry, added] = known.try_emplace({op, device}, true);
  if (added) entry->second = !has_kernel(op, device);
  return entry->second;
}

template <class Body, class Call>
void register_kernel(const char* device) {
  if (!is_first_copy(Body::kName, device)) return;
  tensorflow::register_kernel::Name builder(Body::kName);
  builder.Device(device);
  if (Body::kConstantInput >= 0) builder.HostMemory(kConstantInputName);
  Call::template restrict_types<Body>(builder);
  tensorflow::kernel_factory::OpKernelRegistrar(
      builder.Build(), Body::kName,
      [](tensorflow::OpKernelConstruction* context) -> tensorflow::OpKernel* {
        return new typename Call::template Kernel<Body>(context);
      });
}

template <class Call, class... Bodies>
bool register_kernels(const char* device, OpList<Bodies...>) {
  (register_kernel<Bodies, Call>(device), ...);
  return true;
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_DEVICE_KERNEL_H_
