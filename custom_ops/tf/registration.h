// Registers kernels only in the first copy of this library that a process loads.
//
// A process can load this library twice: from the package and from an exported SavedModel.
// TensorFlow accepts a second registration of the same op. But after REGISTER_KERNEL_BUILDER from
// both copies every call of the op fails ("Multiple OpKernel registrations match NodeDef"). All
// calls run the kernels of the first copy.
#ifndef CUSTOM_OPS_TF_REGISTRATION_H_
#define CUSTOM_OPS_TF_REGISTRATION_H_

#include <memory>

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

// Whether no other copy of this library has registered its kernels. Each copy has its own variable,
// because the library is compiled with -fvisibility=hidden.
inline bool is_first_copy() {
  static const bool first =
      tensorflow::GetRegisteredKernelsForOp("VitAttention").kernel_size() == 0;
  return first;
}

template <class Kernel>
bool register_kernel(const tensorflow::KernelDef* definition) {
  std::unique_ptr<const tensorflow::KernelDef> owned(definition);
  if (!is_first_copy()) return false;
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
