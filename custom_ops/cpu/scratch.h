// The scratch memory of a thread.
#ifndef CUSTOM_OPS_CPU_SCRATCH_H_
#define CUSTOM_OPS_CPU_SCRATCH_H_

#include "custom_ops/cpu/blocking.h"

namespace vit {
namespace VIT_ISA {

// Takes pieces aligned to 64 bytes from the front of a block of memory.
class Scratch {
 public:
  explicit Scratch(void* memory) : next_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += bytes<T>(count);
    return piece;
  }
  // Each piece has room for one more vector, because rows are written in whole vectors.
  template <class T>
  static int64_t bytes(int64_t count) {
    return round_up(count * static_cast<int64_t>(sizeof(T)) + VIT_VECTOR_BYTES, 64);
  }

 private:
  char* next_;
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_SCRATCH_H_
