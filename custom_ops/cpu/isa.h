// Instruction sets, and the selection of one.
#ifndef CUSTOM_OPS_CPU_ISA_H_
#define CUSTOM_OPS_CPU_ISA_H_

// The sets that are compiled into this build, a bit for each Isa. A build with a compiler that
// lacks the flags of a set defines it.
#ifndef VIT_BUILT_ISAS
#if defined(__x86_64__)
#define VIT_BUILT_ISAS 31
#else
#define VIT_BUILT_ISAS 1
#endif
#endif

namespace vit {

// Each is compiled with its own flags. Every set contains the sets before it.
enum class Isa : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3, kAmx = 4 };
constexpr int kIsaCount = 5;

const char* isa_name(Isa isa);

// Whether this build has code for the instruction set and this processor can run it.
bool isa_available(Isa isa);

// The best available instruction set, or the one that the environment variable VIT_ISA names:
// "baseline", "avx2", "avx512", "avx512_bf16" or "amx". VIT_ISA is read once, when the library
// loads: getenv in a kernel would race with another thread that changes the environment. A name
// that is unknown or not available here is ignored, and `isa_error` reports it.
Isa current_isa();

// The problem with VIT_ISA when the library was loaded, with its value; null if there is none. In
// the value, quotes, backslashes and bytes beyond printable ASCII are replaced by "?".
const char* isa_error();

// Chooses the instruction set of later calls by its name, so that a test can run each one; "" means
// the best. Returns null, or the problem, and then changes nothing. isa_error stays as it is.
const char* choose_isa(const char* name);

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ISA_H_
