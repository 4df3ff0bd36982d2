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

// A text for the current GPU of the thread, which there is no code for; the next call overwrites
// it.
const char* gpu_text() {
  thread_local char text[256];
  constexpr char kReference[] = "or use implementation=\"reference\"";
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    snprintf(text, sizeof(text),
             "the kernels need a GPU of compute capability 8.0 or higher; use one, %s", kReference);
  } else if (major < 8) {
    snprintf(text, sizeof(text),
             "the kernels need a GPU of compute capability 8.0 or higher, and this one has %d.%d; "
             "use another one, %s",
             major, minor, kReference);
  } else {
    snprintf(text, sizeof(text),
             "the ops were built without code for GPUs of compute capability %d.%d; build them for "
             "all GPUs (VIT_CUDA_ARCHS=all python -m custom_ops.build_ops), %s",
             major, minor, kReference);
  }
  return text;
}

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

// Numbers of GPUs, by the number of the GPU; 0: not asked yet.
using Answers = std::atomic<int>[64];

// A number, not 0, of the current GPU of the thread. `ask(device, &value)` is called once for each
// GPU, and again after an error.
template <class Ask>
cudaError_t ask_once(Answers& known, int* value, const Ask& ask) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const bool is_counted = device < static_cast<int>(sizeof(known) / sizeof(known[0]));
  if (error == cudaSuccess && is_counted && known[device]) {
    *value = known[device];
    return error;
  }
  if (error == cudaSuccess) error = ask(device, value);
  if (error == cudaSuccess && is_counted) known[device] = *value;
  if (error != cudaSuccess) cudaGetLastError();  // the next call of another would report it
  return error;
}

// Tells by its attributes for which GPU the code is that runs here.
__global__ void code_of_this_gpu() {}

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
  static Answers known;
  int found = 0;
  const cudaError_t error = ask_once(known, &found, [](int device, int* value) {
    return cudaDeviceGetAttribute(value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  });
  *bytes = found;
  return static_cast<CudaResult>(error);
}

int warpgroup_multiprocessors() {
  static Answers known;
  constexpr int kNone = -1;
  int found = kNone;
  ask_once(known, &found, [](int device, int* value) {
    int major = 0, minor = 0, count = 0;
    cudaFuncAttributes attributes = {};
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error != cudaSuccess) return error;
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error != cudaSuccess) return error;
    error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    error = cudaFuncGetAttributes(&attributes, code_of_this_gpu);
    // Code that the driver compiled from PTX is that for all GPUs, which does not use them.
    *value = major == 9 && minor == 0 && attributes.ptxVersion >= 90 ? count : kNone;
    return error;
  });
  return found == kNone ? 0 : found;
}

CudaResult set_to_zero(void* data, int64_t bytes, const CudaExecution& execution) {
  const auto stream = static_cast<cudaStream_t>(execution.stream);
  const cudaError_t error = cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream);
  if (error != cudaSuccess) cudaGetLastError();  // the next call of another would report it
  return static_cast<CudaResult>(error);
}

const char* error_text(CudaResult result) {
  const auto error = static_cast<cudaError_t>(result);
  // The second one: the driver cannot compile the PTX of a newer toolkit.
  if (error == cudaErrorInsufficientDriver || error == cudaErrorUnsupportedPtxVersion) {
    static const DriverText driver;
    return driver.text;
  }
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    return gpu_text();
  }
  if (result == CudaResult::kTooLarge) {
    return "there are more elements than the kernels for GPUs can count; use a smaller batch or "
           "smaller images";
  }
  if (result == CudaResult::kNoKernel) {
    return "the kernels for GPUs take no float64; cast it to float32, or use the CPU";
  }
  return cudaGetErrorString(error);
}

}  // namespace vit
