// Selects the kernels of the instruction set in use, and runs a kernel on threads.
#ifndef CUSTOM_OPS_CPU_DISPATCH_H_
#define CUSTOM_OPS_CPU_DISPATCH_H_

#include "custom_ops/cc/execution.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

// The table of functions of the instruction set in use: Table::of<isa>(arguments). Each file that
// is compiled for one instruction set instantiates the template for that one (kIsa), up to
// Table::kMost. `most` is the highest set that has kernels for the problem. Processors with AMX
// multiply pairs of bfloat16 at half the rate of floats (115 against 230 GFLOP/s on a core of a
// Xeon, 2026-11-23), so that AMX stands for AVX-512 where there are no kernels with tiles.
template <class Table, class... Arguments>
Table table_of_current_isa(Isa most, Arguments... arguments) {
  Isa isa = current_isa();
  if (isa == Isa::kAmx && most != Isa::kAmx) isa = Isa::kAvx512;
  switch (isa < most ? isa : most) {
#if VIT_BUILT_ISAS & 2
    case Isa::kAvx2:
      return Table::template of<Isa::kAvx2>(arguments...);
#endif
#if VIT_BUILT_ISAS & 4
    case Isa::kAvx512:
      return Table::template of<Isa::kAvx512>(arguments...);
#endif
#if VIT_BUILT_ISAS & 8
    case Isa::kAvx512Bf16:
      if constexpr (Table::kMost >= Isa::kAvx512Bf16) {
        return Table::template of<Isa::kAvx512Bf16>(arguments...);
      }
      break;
#endif
#if VIT_BUILT_ISAS & 16
    case Isa::kAmx:
      if constexpr (Table::kMost == Isa::kAmx) {
        return Table::template of<Isa::kAmx>(arguments...);
      }
      break;
#endif
    default:
      break;
  }
  return Table::template of<Isa::kBaseline>(arguments...);
}

// One call of a kernel, used by all threads that take part in it.
template <class Problem>
struct KernelRun {
  const Kernel<Problem>& kernel;
  const Problem& problem;
  const Allocator& allocator;
  bool out_of_memory;

  static void run_units(void* argument, int64_t begin, int64_t end) {
    KernelRun& self = *static_cast<KernelRun*>(argument);
    const int64_t bytes = self.kernel.scratch_bytes(self.problem);
    void* scratch = bytes ? self.allocator.allocate(bytes) : nullptr;
    if (bytes && !scratch) {
      __atomic_store_n(&self.out_of_memory, true, __ATOMIC_RELAXED);
      return;
    }
    self.kernel.run(self.problem, begin, end, scratch);
    if (scratch) self.allocator.release(scratch);
  }
};

// Runs all units of a kernel. The outputs have the same bits for any number of threads.
template <class Problem>
Result run_kernel(const Kernel<Problem>& kernel, const Problem& problem,
                  const Execution& execution) {
  const int64_t units = kernel.units(problem);
  if (units == 0) return Result::kOk;
  KernelRun<Problem> run{kernel, problem, execution.allocator, false};
  const double cycles = kernel.unit_cycles(problem);
  const ParallelFor& parallel_for = execution.parallel_for;
  parallel_for.run(parallel_for.pool, units, static_cast<int64_t>(cycles < 1e12 ? cycles : 1e12),
                   KernelRun<Problem>::run_units, &run);
  return run.out_of_memory ? Result::kOutOfMemory : Result::kOk;
}

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_DISPATCH_H_
