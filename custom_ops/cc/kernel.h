// What every kernel of this folder shares: element types, the way to use threads, the choice of an
// instruction set. Nothing here includes TensorFlow or the C++ standard library, because the
// headers are also read by files that are compiled for one instruction set (see simd.h).
#ifndef CUSTOM_OPS_CC_KERNEL_H_
#define CUSTOM_OPS_CC_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

namespace vit {

// Element type of tensors in memory. Sums are kept in float, or in double for kFloat64.
enum class DType : int { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kFloat64 = 3, kUint8 = 4 };

constexpr int64_t size_of(DType type) {
  return type == DType::kFloat64 ? 8 : type == DType::kFloat32 ? 4 : type == DType::kUint8 ? 1 : 2;
}

// Runs body(argument, begin, end) on ranges that cover [0, total) once, possibly at the same time
// on several threads, and returns when all are done. `cost` is about the cycles of one unit.
using RangeBody = void (*)(void* argument, int64_t begin, int64_t end);
struct ParallelFor {
  void (*run)(void* pool, int64_t total, int64_t cost, RangeBody body, void* argument);
  void* pool;
};

// All ranges on the calling thread.
ParallelFor serial();

enum class Result : int {
  kOk = 0,
  kOutOfMemory = 1,  // scratch could not be allocated; outputs are undefined
};

// Instruction sets, each one file compiled with flags of its own; later ones contain earlier ones.
enum class Isa : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };
constexpr int kIsaCount = 4;

const char* isa_name(Isa isa);

// Whether this build has code for the instruction set and this processor can run it.
bool isa_available(Isa isa);

// The best available one, or the one that the environment variable VIT_ISA names: "baseline",
// "avx2", "avx512" or "avx512_bf16". Read anew in every call, so that a test can change it. A name
// that is unknown or not available here is ignored; `isa_error` says so.
Isa current_isa();

// Null, or what is wrong with VIT_ISA: a text that lives as long as the program.
const char* isa_error();

}  // namespace vit

#endif  // CUSTOM_OPS_CC_KERNEL_H_
