// Registers the ops for NVIDIA GPUs. attention_ops.cc, patch_ops.cc and extract_patches_ops.cc
// define them.

#include "custom_ops/tf/gpu_kernel.h"
#include "custom_ops/tf/op_lists.h"

namespace vit {
namespace {

template <class Body>
void register_op() {
  tensorflow::register_kernel::Name builder(Body::kName);
  builder.Device(tensorflow::DEVICE_GPU);
  if (Body::kConstantInput >= 0) builder.HostMemory(kConstantInputName);
  restrict_types_on_gpus<Body>(builder);
  register_kernel<GpuKernel<Body>>(builder.Build());
}

template <class... Bodies>
bool register_ops(OpList<Bodies...>) {
  (register_op<Bodies>(), ...);
  return true;
}

[[maybe_unused]] const bool registered = register_ops(CudaOps());

}  // namespace
}  // namespace vit
