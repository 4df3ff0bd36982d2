// A barrier in shared memory (mbarrier), which threads pass in phases, and the division of the
// registers of a block among its warpgroups. Both exist on capability 9.0. device.h includes this
// file.
#ifndef CUSTOM_OPS_CUDA_SHARED_BARRIER_H_
#define CUSTOM_OPS_CUDA_SHARED_BARRIER_H_

#include <stdint.h>

namespace vit {

// Phases have the numbers 0, 1, 0, 1, ... The first one is 0.
struct SharedBarrier {
  static constexpr int kBytes = 8;
  char* data;  // in shared memory, aligned to kBytes

  VIT_DEVICE_METHOD uint32_t address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(data));
  }
  // A phase ends after `arrivals`. One thread calls it, before a barrier of the block.
  VIT_DEVICE_METHOD void init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }
  VIT_DEVICE_METHOD void arrive() const {
    asm volatile(
        "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(address())
        : "memory");
  }
  // Whether the phase with this number has ended: while the other one runs, and for number 1 before
  // the end of the first one.
  VIT_DEVICE_METHOD bool has_ended(int phase) const {
    uint32_t result;
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(result)
        : "r"(address()), "r"(phase)
        : "memory");
    return result;
  }
  // Waits until it has ended.
  VIT_DEVICE_METHOD void wait(int phase) const {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(address()),
        "r"(phase)
        : "memory");
  }
};

// All threads of a warpgroup call one of them, once. The sum over the warpgroups of a block must
// not exceed what the block was launched with.
template <int registers>
VIT_DEVICE void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
VIT_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_SHARED_BARRIER_H_
