// How a call runs on a GPU. Launchers start work on a stream and return; they include neither
// TensorFlow nor XLA. There are launchers for attention (cuda_attention.h) and for patches
// (cuda_patch_embed.h), none for the encoder.
#ifndef CUSTOM_OPS_CUDA_CUDA_EXECUTION_H_
#define CUSTOM_OPS_CUDA_CUDA_EXECUTION_H_

#include <stdint.h>

namespace vit {

// What a launcher returns: the number of a CUDA error (cudaError_t), or kNoKernel.
enum class CudaResult : int {
  kOk = 0,
  kOutOfMemory = 2,  // cudaErrorMemoryAllocation
  kTooLarge = 9,     // cudaErrorInvalidConfiguration: more elements than kernels count
  kNoKernel = -1,    // there are no kernels for float64
};

struct CudaExecution {
  using Result = CudaResult;

  void* stream;  // a cudaStream_t
  // Returns scratch memory of the GPU, aligned to 16 bytes, which stays valid for the work that
  // the call starts on the stream; null if there is not enough.
  void* (*allocate)(void* allocator, int64_t bytes);
  void* allocator;
};

// As long as it lives, the GPU that holds `data` is the current one of the thread. It changes
// nothing if `data` is null, or memory that CUDA does not know.
class CurrentDevice {
 public:
  explicit CurrentDevice(const void* data);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  // Whether it could be made the current one.
  CudaResult result() const { return result_; }

 private:
  int before_ = -1;  // -1: it was the current one
  CudaResult result_ = CudaResult::kOk;
};

// The most bytes of shared memory that a block on the current GPU of the thread may have. CUDA is
// asked once for each GPU.
CudaResult most_shared_bytes(int64_t* bytes);

// The multiprocessors of the current GPU if it has the products of warpgroups (capability 9.0), and
// code that uses them; otherwise 0.
int warpgroup_multiprocessors();

// Writes zeros to memory of the GPU.
CudaResult set_to_zero(void* data, int64_t bytes, const CudaExecution& execution);

// The text of CUDA for an error. Where the driver does not fit the toolkit that compiled the
// kernels, it names both versions and what to do. Valid as long as the library is loaded.
const char* error_text(CudaResult result);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_CUDA_EXECUTION_H_
