// The results of CUDA launchers as statuses.
#ifndef CUSTOM_OPS_TF_CUDA_STATUS_H_
#define CUSTOM_OPS_TF_CUDA_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "custom_ops/cuda/execution.h"

namespace vit {

inline absl::Status status_of(CudaResult result, const char* op) {
  if (result == CudaResult::kOk) return absl::OkStatus();
  if (result == CudaResult::kOutOfMemory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        op, " could not allocate its scratch memory on the GPU. Use a smaller batch."));
  }
  return absl::InternalError(absl::StrCat(op, " failed: CUDA error ", static_cast<int>(result),
                                          ", ", error_text(result), "."));
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_CUDA_STATUS_H_
