// The interface of kernels to the code that runs them.
#ifndef CUSTOM_OPS_CPU_KERNEL_H_
#define CUSTOM_OPS_CPU_KERNEL_H_

#include <stdint.h>

namespace vit {

// Units of work that threads can do in any order, because each writes what no other one writes.
template <class Problem>
struct Kernel {
  int64_t (*units)(const Problem& problem);
  // About what one unit takes.
  double (*unit_cycles)(const Problem& problem);
  // Of one thread, while it does some of the units.
  int64_t (*scratch_bytes)(const Problem& problem);
  // `scratch` is aligned to 64 bytes and holds anything.
  void (*run)(const Problem& problem, int64_t begin, int64_t end, void* scratch);

  // From a class that has these functions.
  template <class Implementation>
  static constexpr Kernel of() {
    return {Implementation::units, Implementation::unit_cycles, Implementation::scratch_bytes,
            Implementation::run};
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_KERNEL_H_
