// Makes shapes and numbers from the bytes of libFuzzer.
#ifndef TESTS_CC_FUZZ_H_
#define TESTS_CC_FUZZ_H_

#include <vector>

#include "tests/cc/check.h"
#include "tests/cc/numbers.h"

namespace vit_test {

// Contents of tensors: plain numbers, plain numbers with a few hard ones, or any bits.
enum class Contents { kPlain, kHard, kAny };

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // An integer in [low, high]; `low` after the end of the bytes.
  int64_t pick(int64_t low, int64_t high) { return low + next() % (high - low + 1); }

  Contents contents() {
    // Plain numbers most of the time, because only their results are compared.
    const int64_t x = pick(0, 3);
    return x == 3 ? Contents::kAny : x == 2 ? Contents::kHard : Contents::kPlain;
  }

  std::vector<double> numbers(vit::DType type, int64_t count, Contents contents) {
    std::vector<double> result(static_cast<size_t>(count));
    const uint64_t seed = static_cast<uint64_t>(next() << 8 | next());
    Random random(seed);
    for (double& x : result) {
      if (contents == Contents::kAny) {
        uint64_t bits = random.bits();
        if (at_ < size_) bits = bits << 8 | data_[at_++];
        x = load_number(type, &bits);
      } else {
        x = type == vit::DType::kUint8 ? static_cast<double>(random.below(256)) : random.normal();
        if (contents == Contents::kHard && random.below(16) == 0) x = hard(random.below(8));
      }
      x = rounded_to(type, type == vit::DType::kUint8 && !(x >= 0 && x < 256) ? 0 : x);
    }
    return result;
  }

  // Selects one of the instruction sets that this processor has.
  void pick_isa() {
    const vit::Isa isa = static_cast<vit::Isa>(pick(0, vit::kIsaCount - 1));
    vit::choose_isa(vit::isa_available(isa) ? vit::isa_name(isa) : "");
  }

 private:
  int64_t next() { return at_ < size_ ? data_[at_++] : 0; }

  static double hard(int64_t i) {
    const double numbers[] = {NAN, HUGE_VAL, -HUGE_VAL, 0, -0.0, 3e38, 1e-40, -65504};
    return numbers[i];
  }

  const uint8_t* data_;
  size_t size_, at_ = 0;
};

// Crashes after a failed check, so that libFuzzer keeps the input.
inline int end_of_run() {
  if (state().failures) abort();
  return 0;
}

}  // namespace vit_test

#endif  // TESTS_CC_FUZZ_H_
