// The results of CUDA launchers as statuses.
#ifndef CUSTOM_OPS_CUDA_CUDA_STATUS_H_
#define CUSTOM_OPS_CUDA_CUDA_STATUS_H_

#include "custom_ops/cc/status.h"
#include "custom_ops/cuda/cuda_execution.h"

namespace vit {

inline Status status_of(CudaResult result, const char* op) {
  if (result == CudaResult::kOk) return {};
  if (result == CudaResult::kOutOfMemory) {
    return error(Code::kResourceExhausted, op,
                 " could not allocate its scratch memory on the GPU. Use a smaller batch.");
  }
  return error(Code::kInternal, op, " failed: CUDA error ", static_cast<int>(result), ", ",
               error_text(result), ".");
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_CUDA_STATUS_H_
