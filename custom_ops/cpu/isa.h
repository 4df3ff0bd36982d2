// Instruction sets and the choice of one.
#ifndef CUSTOM_OPS_CPU_ISA_H_
#define CUSTOM_OPS_CPU_ISA_H_

namespace vit {

// Each is compiled with flags of its own; later ones contain earlier ones.
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

#endif  // CUSTOM_OPS_CPU_ISA_H_
