#include "custom_ops/cuda/cuda_execution.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include <atomic>

namespace vit {
namespace {

// A text for a driver that does not fit the toolkit. CUDA counts versions so: 13000 is 13.0.
struct DriverText {
  DriverText() {
    int driver = 0;
    const int own = CUDART_VERSION / 1000, own_minor = CUDART_VERSION % 1000 / 10;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      snprintf(text, sizeof(text),
               "there is no NVIDIA driver; install one for CUDA %d.%d or a newer one", own,
               own_minor);
      return;
    }
    const int major = driver / 1000, minor = driver % 1000 / 10;
    snprintf(text, sizeof(text),
             "the NVIDIA driver is for CUDA %d.%d, and the ops were built with CUDA %d.%d; install "
             "a newer driver, or build the ops with the nvcc of CUDA %d.%d or an older one "
             "(CUDA_HOME=FOLDER python -m custom_ops.build_ops)",
             major, minor, own, own_minor, major, minor);
  }

  char text[256];
};

// The GPUs of `data` and of the thread; -1 if CUDA does not know the memory.
cudaError_t find_devices(const void* data, int* of_data, int* current) {
  cudaPointerAttributes attributes;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, data);
  if (error != cudaSuccess) return error;
  const bool is_known =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  *of_data = is_known ? attributes.device : -1;
  return cudaGetDevice(current);
}

}  // namespace

CurrentDevice::CurrentDevice(const void* data) {
  if (!data) return;
  int of_data = -1, current = -1;
  cudaError_t error = find_devices(data, &of_data, &current);
  if (error == cudaSuccess && of_data >= 0 && of_data != current) {
    error = cudaSetDevice(of_data);
    if (error == cudaSuccess) before_ = current;
  }
  if (error != cudaSuccess) cudaGetLastError();  // the next call of another would report it
  result_ = static_cast<CudaResult>(error);
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

CudaResult most_shared_bytes(int64_t* bytes) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices] = {};  // 0: not asked yet
  int device = 0, found = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess && device < kDevices) found = known[device];
  if (error == cudaSuccess && found == 0) {
    error = cudaDeviceGetAttribute(&found, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess && device < kDevices) known[device] = found;
  }
  if (error != cudaSuccess) cudaGetLastError();  // the next call of another would report it
  *bytes = found;
  return static_cast<CudaResult>(error);
}

CudaResult set_to_zero(void* data, int64_t bytes, const CudaExecution& execution) {
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  return static_cast<CudaResult>(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream));
}

const char* error_text(CudaResult result) {
  const auto error = static_cast<cudaError_t>(result);
  // The second one: the driver cannot compile the PTX of a newer toolkit.
  if (error == cudaErrorInsufficientDriver || error == cudaErrorUnsupportedPtxVersion) {
    static const DriverText driver;
    return driver.text;
  }
  if (result == CudaResult::kTooLarge) {
    return "there are more elements than one launch can have threads for; use a smaller batch or "
           "smaller images";
  }
  if (result == CudaResult::kNoKernel) {
    return "the kernels for GPUs take no float64; cast it to float32, or use the CPU";
  }
  return cudaGetErrorString(error);
}

}  // namespace vit
