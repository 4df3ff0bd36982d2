// What the kernels use of a GPU: indices, barriers, exchange within a warp, asynchronous copies,
// and products on tensor cores. The instructions exist from sm_80 on. Kernels use nothing else of
// CUDA, so tests compile the same kernels with a C++ compiler and run the threads of each block on
// the CPU: the macro VIT_EMULATED_GPU names the header that defines there what this file defines
// here.
//
// A kernel is `VIT_KERNEL(threads, blocks, name, const Parameters p) {...}`. Its blocks and threads
// are numbered along one dimension.
#ifndef CUSTOM_OPS_CUDA_DEVICE_H_
#define CUSTOM_OPS_CUDA_DEVICE_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cuda/cuda_execution.h"
#include "custom_ops/cuda/launch.h"

#ifdef VIT_EMULATED_GPU
#include VIT_EMULATED_GPU
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// Up to `threads` threads per block, and so many blocks per multiprocessor that a thread may use
// 65536 / threads / blocks registers.
#define VIT_KERNEL(threads, blocks, name, parameter) \
  static __global__ void __launch_bounds__(threads, blocks) name(parameter)
#define VIT_DEVICE static __device__ __forceinline__
#define VIT_DEVICE_METHOD __device__ __forceinline__

namespace vit {

constexpr int kWarp = 32;

using Bfloat16 = __nv_bfloat16;
using Float16 = __half;

VIT_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
VIT_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
// The compiler knows that it is the same for all threads of a warp.
VIT_DEVICE int warp_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0);
}
VIT_DEVICE int64_t block_index() { return blockIdx.x; }

// The dynamic shared memory of the block, aligned to 16 bytes.
VIT_DEVICE char* shared_memory() {
  extern __shared__ __align__(16) char memory[];
  return memory;
}

// All threads of the block must call it.
VIT_DEVICE void sync_block() { __syncthreads(); }

// All threads of the warp must call what follows, up to the arithmetic.
VIT_DEVICE void sync_warp() { __syncwarp(); }

// The value that the thread with the number `lane ^ mask` passes.
template <class T>
VIT_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

// The value that the thread with the number `lane` passes.
template <class T>
VIT_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// Whether `value` is true in any of the threads.
VIT_DEVICE bool any_of_warp(bool value) { return __any_sync(0xffffffffu, value); }

// Reads four 8x8 matrices of 16-bit elements from shared memory. `row` is the address of a row of
// 16 bytes, aligned to 16 bytes: thread 8 i + r gives row r of matrix i. Of matrix i, thread t gets
// the elements 2 (t % 4) and 2 (t % 4) + 1 of row t / 4, or of column t / 4 (is_transposed).
template <bool is_transposed>
VIT_DEVICE void load_matrices(const void* row, uint32_t (&matrices)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (is_transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  }
}

// sums[16, 8] += a[16, 16] b[16, 8] on tensor cores. With g = lane / 4 and c = 2 (lane % 4), a
// thread holds
//   a: (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8)   each with the element in the next column
//   b: (c, g), (c + 8, g)                               each with the element in the next row
//   sums: (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1)
template <class T>
VIT_DEVICE void multiply_add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4]);

template <>
__device__ __forceinline__ void multiply_add<Bfloat16>(const uint32_t (&a)[4], uint32_t b0,
                                                       uint32_t b1, float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_add<Float16>(const uint32_t (&a)[4], uint32_t b0,
                                                      uint32_t b1, float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts a copy of 16 bytes from the memory of the GPU to shared memory, both aligned to 16 bytes.
// Writes zeros, and reads nothing, if the source is not valid.
VIT_DEVICE void copy_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}

// The same for 4 bytes.
VIT_DEVICE void copy_word_async(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}

// Makes a group of the copies that this thread started since the last group.
VIT_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last `pending` groups of this thread are done. Other threads see their
// data after sync_block().
template <int pending>
VIT_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Reads or writes kWords words, aligned to their size: 1, 2 or 4.
template <int kWords>
VIT_DEVICE void load_words(const void* from, uint32_t* words) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 1) words[0] = *static_cast<const uint32_t*>(from);
  if constexpr (kWords == 2) {
    const uint2 read = *static_cast<const uint2*>(from);
    words[0] = read.x, words[1] = read.y;
  }
  if constexpr (kWords == 4) {
    const uint4 read = *static_cast<const uint4*>(from);
    words[0] = read.x, words[1] = read.y, words[2] = read.z, words[3] = read.w;
  }
}
template <int kWords>
VIT_DEVICE void store_words(void* to, const uint32_t* words) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 1) *static_cast<uint32_t*>(to) = words[0];
  if constexpr (kWords == 2) *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  if constexpr (kWords == 4) {
    *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

VIT_DEVICE float to_float(float x) { return x; }
VIT_DEVICE float to_float(Bfloat16 x) { return __bfloat162float(x); }
VIT_DEVICE float to_float(Float16 x) { return __half2float(x); }
VIT_DEVICE float to_float(uint8_t x) { return x; }

// Rounds to nearest, ties to even.
template <class T>
VIT_DEVICE T rounded(float x);
template <>
__device__ __forceinline__ float rounded<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bfloat16 rounded<Bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ Float16 rounded<Float16>(float x) {
  return __float2half_rn(x);
}

// Two rounded numbers in one register, `low` in the lower half.
template <class T>
VIT_DEVICE uint32_t packed(float low, float high);
template <>
__device__ __forceinline__ uint32_t packed<Bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t packed<Float16>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// A product that is rounded, not fused with a following sum.
VIT_DEVICE float rounded_product(float x, float y) { return __fmul_rn(x, y); }

// x * y + sum, rounded once. Where two kernels must get the same bits, the compiler may not choose.
VIT_DEVICE float fused_product(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }

// 2^x, with an error of at most 2 units in the last place of a float.
VIT_DEVICE float power_of_two(float x) { return exp2f(x); }
VIT_DEVICE float logarithm_of_two(float x) { return log2f(x); }
VIT_DEVICE float square_root(float x) { return sqrtf(x); }

// 2^x for weights that are rounded to 16 bits: subnormal results are zero.
VIT_DEVICE float fast_power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The result of a call that failed, which the next call of another would report otherwise.
inline CudaResult forgotten(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return static_cast<CudaResult>(error);
}

// Starts a kernel on the stream. kTooLarge: no GPU can launch so many blocks, or this one has not
// so much shared memory.
template <class Parameters>
CudaResult launch(void (*kernel)(Parameters), const LaunchShape& shape,
                  const Parameters& parameters, const CudaExecution& execution) {
  int64_t most_shared;
  const CudaResult result = most_shared_bytes(&most_shared);
  if (result != CudaResult::kOk) return result;
  if (!is_launchable(shape, most_shared)) return CudaResult::kTooLarge;
  constexpr int64_t kWithoutAttribute = 48 * 1024;
  if (shape.shared_bytes > kWithoutAttribute) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return forgotten(error);
  }
  void* arguments[] = {const_cast<Parameters*>(&parameters)};
  return forgotten(cudaLaunchKernel(
      reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(shape.blocks)),
      dim3(static_cast<unsigned>(shape.threads)), arguments,
      static_cast<size_t>(shape.shared_bytes), static_cast<cudaStream_t>(execution.stream)));
}

}  // namespace vit

#include "custom_ops/cuda/shared_barrier.h"
#include "custom_ops/cuda/warpgroup_products.h"

#endif  // VIT_EMULATED_GPU
#endif  // CUSTOM_OPS_CUDA_DEVICE_H_
