// The selection of an instruction set, by processor and by name.
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
  vit::choose_isa("");
  expect(vit::isa_available(Isa::kBaseline), "the baseline is available");
  const Isa best = vit::current_isa();
  expect(vit::isa_available(best), "the best instruction set is available");
  for (int i = static_cast<int>(best) + 1; i < vit::kIsaCount; ++i) {
    expect(!vit::isa_available(static_cast<Isa>(i)), "no set above the best one is available");
  }
  expect(vit::isa_error() == nullptr, "there is no error without VIT_ISA");

  for (int i = 0; i < vit::kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i), before = vit::current_isa();
    const char* error = vit::choose_isa(vit::isa_name(isa));
    if (vit::isa_available(isa)) {
      expect(!error && vit::current_isa() == isa, "an available set is chosen by its name");
    } else {
      expect(vit::current_isa() == before, "a set that is not available changes nothing");
      expect(mentions(error, "does not have"), "the error reports a set that is not available");
    }
  }
  const Isa last = vit::current_isa();
  expect(mentions(vit::choose_isa("AVX2"), "unknown"), "the error reports an unknown name");
  expect(vit::current_isa() == last, "an unknown name changes nothing");
  expect(!vit::choose_isa("") && vit::current_isa() == best, "an empty name means the best set");
  return failures != 0;
}
