// How a call runs on a GPU. Launchers start work on a stream and return; they include neither
// TensorFlow nor XLA. The functions of this folder are declared only, for custom_ops/xla/
// cuda_handlers.cc, which compiles and is in no library yet: there are no CUDA kernels.
#ifndef CUSTOM_OPS_CUDA_EXECUTION_H_
#define CUSTOM_OPS_CUDA_EXECUTION_H_

#include <stdint.h>

namespace vit {

// What a launcher returns: the number of a CUDA error (cudaError_t).
enum class CudaResult : int {
  kOk = 0,
  kOutOfMemory = 2,  // cudaErrorMemoryAllocation
  kTooLarge = 9,     // cudaErrorInvalidConfiguration: more blocks than a launch can have
};

struct CudaExecution {
  using Result = CudaResult;

  void* stream;  // a cudaStream_t
  // Returns scratch memory of the GPU, which stays valid for the work that the call starts on the
  // stream; null if there is not enough.
  void* (*allocate)(void* allocator, int64_t bytes);
  void* allocator;
};

// Writes zeros to memory of the GPU.
CudaResult set_to_zero(void* data, int64_t bytes, const CudaExecution& execution);

// The text of CUDA for an error.
const char* error_text(CudaResult result);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_EXECUTION_H_
