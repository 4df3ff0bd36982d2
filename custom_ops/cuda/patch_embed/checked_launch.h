#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_CHECKED_LAUNCH_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_CHECKED_LAUNCH_H_

#include "custom_ops/cuda/device.h"

namespace vit {

// Starts a kernel, if the work is not too large for a launch.
template <class Parameters>
CudaResult checked_launch(void (*kernel)(Parameters), const LaunchShape& shape,
                          const Parameters& parameters, const CudaExecution& execution) {
  if (!is_launchable(shape)) return CudaResult::kTooLarge;
  return launch(kernel, shape, parameters, execution);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_CHECKED_LAUNCH_H_
