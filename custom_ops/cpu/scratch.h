// The scratch memory of a thread.
#ifndef CUSTOM_OPS_CPU_SCRATCH_H_
#define CUSTOM_OPS_CPU_SCRATCH_H_

#include <stddef.h>

#include "custom_ops/cpu/blocking.h"

// With AddressSanitizer (of clang) there is a gap after each piece that must not be touched. Memory
// that is used again (cpu/phases.h) has gaps of other pieces, which end.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VIT_SCRATCH_GAP 64
extern "C" void __asan_poison_memory_region(const volatile void* from, size_t bytes);
extern "C" void __asan_unpoison_memory_region(const volatile void* from, size_t bytes);
#endif
#endif
#ifndef VIT_SCRATCH_GAP
#define VIT_SCRATCH_GAP 0
#endif

namespace vit {
namespace VIT_ISA {

// Takes pieces aligned to 64 bytes from the front of the scratch memory.
class Scratch {
 public:
  explicit Scratch(void* memory) : next_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += bytes<T>(count);
#if VIT_SCRATCH_GAP
    const char* used = reinterpret_cast<char*>(piece) + used_bytes<T>(count);
    __asan_unpoison_memory_region(piece, static_cast<size_t>(used_bytes<T>(count)));
    __asan_poison_memory_region(used, static_cast<size_t>(next_ - used));
#endif
    return piece;
  }
  template <class T>
  static int64_t bytes(int64_t count) {
    return round_up(used_bytes<T>(count) + VIT_SCRATCH_GAP, 64);
  }

 private:
  // Each piece has room for one more vector, because rows are written in whole vectors.
  template <class T>
  static int64_t used_bytes(int64_t count) {
    return count * static_cast<int64_t>(sizeof(T)) + VIT_VECTOR_BYTES;
  }

  char* next_;
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_SCRATCH_H_
