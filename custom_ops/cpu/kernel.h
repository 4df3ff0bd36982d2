// The interface between kernels and the code that runs them.
#ifndef CUSTOM_OPS_CPU_KERNEL_H_
#define CUSTOM_OPS_CPU_KERNEL_H_

#include <stdint.h>

namespace vit {

// A kernel: units of work that threads can do in any order, because no two units write the same
// memory.
template <class Problem>
struct Kernel {
  int64_t (*units)(const Problem& problem);
  // The approximate cycles of one unit.
  double (*unit_cycles)(const Problem& problem);
  // The scratch that one thread needs.
  int64_t (*scratch_bytes)(const Problem& problem);
  // Computes the units [begin, end). `scratch` is aligned to 64 bytes and not initialised.
  void (*run)(const Problem& problem, int64_t begin, int64_t end, void* scratch);

  // Makes a kernel from a class that has these functions.
  template <class Implementation>
  static constexpr Kernel of() {
    return {Implementation::units, Implementation::unit_cycles, Implementation::scratch_bytes,
            Implementation::run};
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_KERNEL_H_
