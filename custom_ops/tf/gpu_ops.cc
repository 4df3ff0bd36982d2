// Registers the ops for NVIDIA GPUs. attention_ops.cc, patch_ops.cc and extract_patches_ops.cc
// define them. It needs no header of CUDA: TensorFlow names the stream.

#include <vector>

#include "custom_ops/cuda/cuda_attention.h"
#include "custom_ops/cuda/cuda_status.h"
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "custom_ops/tf/device_kernel.h"
#include "xla/stream_executor/stream.h"

namespace vit {
namespace {

// Holds the scratch memory until the op has started its work. TensorFlow's allocator for GPUs gives
// it away again only to work that follows on the same stream.
class GpuCall {
 public:
  template <class Body>
  using Kernel = DeviceKernel<Body, GpuCall>;

  explicit GpuCall(tensorflow::OpKernelContext* context) : context_(context) {}

  CudaExecution execution() {
    auto* const stream = context_->op_device_context()->stream();
    return {stream->platform_specific_handle().stream, allocate_scratch, this};
  }

  template <class Body>
  static void restrict_types(tensorflow::register_kernel::Name& builder) {
    restrict_types_on_gpus<Body>(builder);
  }

  // TensorFlow's allocator knows the memory of the GPU and refuses more.
  Status check_memory(const Array&) const { return {}; }

  Status status(CudaResult result, const char* op) const { return status_of(result, op); }

 private:
  static void* allocate_scratch(void* call, int64_t bytes) {
    auto* const self = static_cast<GpuCall*>(call);
    tensorflow::Tensor memory;
    const absl::Status status =
        self->context_->allocate_temp(tensorflow::DT_UINT8, {bytes}, &memory);
    if (!status.ok()) return nullptr;
    self->scratch_.push_back(memory);
    return memory.data();
  }

  tensorflow::OpKernelContext* const context_;
  std::vector<tensorflow::Tensor> scratch_;
};

[[maybe_unused]] const bool registered =
    register_kernels<GpuCall>(tensorflow::DEVICE_GPU, CudaOps());

}  // namespace
}  // namespace vit
