// Registers the kernels that no earlier copy of this library has registered.
//
// A process can load this library twice: from the package and from an exported SavedModel.
// TensorFlow accepts a second registration of the same op. But after REGISTER_KERNEL_BUILDER from
// both copies every call of the op fails ("Multiple OpKernel registrations match NodeDef"). So the
// kernels of the first copy run. A later copy, which may be newer or for other devices, adds the
// kernels that the first one lacks: op by op, and all attention ops of a device or none.
#ifndef CUSTOM_OPS_TF_REGISTRATION_H_
#define CUSTOM_OPS_TF_REGISTRATION_H_

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

// Whether no other copy of this library had kernels of this op for this kind of device. The
// attention ops belong together, because the gradients and taps read the statistics of
// VitAttention, and another copy may define them in another way. Each copy has its own map, because
// the library is compiled with -fvisibility=hidden.
inline bool is_first_copy(std::string op, const std::string& device) {
  if (op.rfind("VitAttention", 0) == 0) op = "VitAttention";
  static std::map<std::pair<std::string, std::string>, bool> known;
  const auto [entry, added] = known.try_emplace({op, device}, true);
  if (added) {
    const tensorflow::KernelList registered = tensorflow::GetRegisteredKernelsForOp(op);
    for (const auto& kernel : registered.kernel()) {
      if (kernel.device_type() == device) entry->second = false;
    }
  }
  return entry->second;
}

template <class Kernel>
bool register_kernel(const tensorflow::KernelDef* definition) {
  std::unique_ptr<const tensorflow::KernelDef> owned(definition);
  if (!is_first_copy(definition->op(), definition->device_type())) return false;
  tensorflow::kernel_factory::OpKernelRegistrar(
      owned.release(), definition->op(),
      [](tensorflow::OpKernelConstruction* context) -> tensorflow::OpKernel* {
        return new Kernel(context);
      });
  return true;
}

}  // namespace vit

#define VIT_REGISTER_KERNEL(builder, ...) VIT_REGISTER_KERNEL_1(__COUNTER__, builder, __VA_ARGS__)
#define VIT_REGISTER_KERNEL_1(id, builder, ...) VIT_REGISTER_KERNEL_2(id, builder, __VA_ARGS__)
// Used like REGISTER_KERNEL_BUILDER:
//   VIT_REGISTER_KERNEL(Name("VitAttention").Device(DEVICE_CPU), AttentionOp);
#define VIT_REGISTER_KERNEL_2(id, builder, ...)                   \
  [[maybe_unused]] static const bool vit_registered_kernel_##id = \
      ::vit::register_kernel<__VA_ARGS__>((::tensorflow::register_kernel::builder).Build());

#endif  // CUSTOM_OPS_TF_REGISTRATION_H_
