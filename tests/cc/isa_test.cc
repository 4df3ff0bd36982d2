// The selection of an instruction set, by processor and by VIT_ISA.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "custom_ops/cpu/isa.h"

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "failed: %s\n", what);
}

bool mentions(const char* text, const char* part) { return text && strstr(text, part); }

}  // namespace

int main() {
  using vit::Isa;
  vit::choose_isa(nullptr);
  expect(vit::isa_available(Isa::kBaseline), "the baseline is available");
  const Isa best = vit::current_isa();
  expect(vit::isa_available(best), "the best instruction set is available");
  for (int i = static_cast<int>(best) + 1; i < vit::kIsaCount; ++i) {
    expect(!vit::isa_available(static_cast<Isa>(i)), "no set above the best one is available");
  }
  expect(vit::isa_error() == nullptr, "there is no error without a name");

  for (int i = 0; i < vit::kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    vit::choose_isa(vit::isa_name(isa));
    if (vit::isa_available(isa)) {
      expect(vit::current_isa() == isa, "an available set is chosen by its name");
      expect(vit::isa_error() == nullptr, "there is no error for an available set");
    } else {
      expect(vit::current_isa() == best, "a set that is not available is ignored");
      expect(mentions(vit::isa_error(), "does not have"),
             "the error reports a set that is not available");
    }
  }
  vit::choose_isa("AVX2");
  expect(vit::current_isa() == best, "an unknown name is ignored");
  expect(mentions(vit::isa_error(), "unknown"), "the error reports an unknown name");
  vit::choose_isa("");
  expect(vit::current_isa() == best && vit::isa_error() == nullptr,
         "an empty name means the best set");
  return failures != 0;
}
