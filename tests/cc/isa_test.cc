// The choice of an instruction set, by processor and by VIT_ISA.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "custom_ops/cpu/isa.h"

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "not so: %s\n", what);
}

bool mentions(const char* text, const char* part) { return text && strstr(text, part); }

}  // namespace

int main() {
  using vit::Isa;
  unsetenv("VIT_ISA");
  expect(vit::isa_available(Isa::kBaseline), "the baseline is available");
  const Isa best = vit::current_isa();
  expect(vit::isa_available(best), "the best instruction set is available");
  for (int i = static_cast<int>(best) + 1; i < vit::kIsaCount; ++i) {
    expect(!vit::isa_available(static_cast<Isa>(i)), "there is none better than the best");
  }
  expect(vit::isa_error() == nullptr, "without VIT_ISA nothing is wrong");

  for (int i = 0; i < vit::kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    setenv("VIT_ISA", vit::isa_name(isa), 1);
    if (vit::isa_available(isa)) {
      expect(vit::current_isa() == isa, "VIT_ISA decides where it can");
      expect(vit::isa_error() == nullptr, "and then nothing is wrong");
    } else {
      expect(vit::current_isa() == best, "what is not available is ignored");
      expect(mentions(vit::isa_error(), "does not have"), "and said");
    }
  }
  setenv("VIT_ISA", "AVX2", 1);
  expect(vit::current_isa() == best, "an unknown name is ignored");
  expect(mentions(vit::isa_error(), "unknown"), "and said");
  setenv("VIT_ISA", "", 1);
  expect(vit::current_isa() == best && vit::isa_error() == nullptr, "empty is unset");
  return failures != 0;
}
