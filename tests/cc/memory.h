// Tensors with guard bytes around them, and an allocator for the scratch of the kernels.
#ifndef TESTS_CC_MEMORY_H_
#define TESTS_CC_MEMORY_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <vector>

#include "custom_ops/cc/execution.h"
#include "tests/cc/check.h"
#include "tests/cc/numbers.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VIT_TEST_POISON 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define VIT_TEST_POISON 1
#endif
#if defined(VIT_TEST_POISON)
#include <sanitizer/asan_interface.h>
#endif

namespace vit_test {

// All bits set: NaN in every float type, 255 as uint8.
constexpr int kNan = 0xff;
// A byte that fills guards of outputs.
constexpr int kCanary = 0xa5;

// Statistics and settings of the scratch allocator.
struct ScratchUse {
  std::atomic<bool> refuse{false};              // allocations fail
  std::atomic<int64_t> left{INT64_MAX};         // allocations until they fail
  std::atomic<int64_t> calls{0}, in_use{0};     // allocations, and the ones not yet released
  std::atomic<int64_t> largest{0};              // bytes of the largest piece
};
inline ScratchUse& scratch_use() {
  static ScratchUse use;
  return use;
}

// Elements of one type in memory of their own. An odd `shift` gives them only the alignment of
// their type. Inputs have NaN before and after them, so a kernel that reads there gives a wrong
// result; outputs have a canary. With AddressSanitizer any access there is an error.
class Tensor {
 public:
  enum Use { kInput, kOutput };

  Tensor(vit::DType type, int64_t count, Use use, int shift)
      : type_(type), count_(count), size_(vit::size_of(type)), use_(use) {
    const int64_t before = kGuard + shift * size_, all = before + bytes() + kGuard;
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, static_cast<size_t>(all))) abort();
    memory_ = static_cast<uint8_t*>(memory);
    data_ = memory_ + before;
    end_ = memory_ + all;
    memset(memory_, use == kInput ? kNan : kCanary, static_cast<size_t>(all));
    memset(data_, kNan, static_cast<size_t>(bytes()));
    poison(true);
  }
  Tensor(vit::DType type, const std::vector<double>& values, int shift)
      : Tensor(type, static_cast<int64_t>(values.size()), kInput, shift) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[static_cast<size_t>(i)]);
    kept_.assign(data_, data_ + bytes());
  }
  ~Tensor() {
    poison(false);
    free(memory_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  vit::DType type() const { return type_; }
  int64_t count() const { return count_; }
  int64_t bytes() const { return count_ * size_; }
  void* data() { return data_; }
  const void* data() const { return data_; }
  double at(int64_t i) const { return load_number(type_, data_ + i * size_); }
  void set(int64_t i, double x) { store_number(type_, x, data_ + i * size_); }

  // Resets the contents, to call a kernel again.
  void forget() { memset(data_, kNan, static_cast<size_t>(bytes())); }

  // Whether guards and inputs are unchanged.
  bool intact() {
    poison(false);
    const int guard = use_ == kInput ? kNan : kCanary;
    bool same = true;
    for (const uint8_t* p = memory_; p < data_; ++p) same &= *p == guard;
    for (const uint8_t* p = data_ + bytes(); p < end_; ++p) same &= *p == guard;
    poison(true);
    if (!kept_.empty()) same &= memcmp(kept_.data(), data_, kept_.size()) == 0;
    return same;
  }

  bool operator==(const Tensor& other) const {
    if (count_ != other.count_) return false;
    return !count_ || memcmp(data_, other.data_, static_cast<size_t>(bytes())) == 0;
  }

 private:
  static constexpr int64_t kGuard = 256;

  void poison(bool on) {
#if defined(VIT_TEST_POISON)
    const size_t before = static_cast<size_t>(data_ - memory_);
    uint8_t* behind = data_ + bytes();
    const size_t rest = static_cast<size_t>(end_ - behind);
    if (on) {
      __asan_poison_memory_region(memory_, before);
      __asan_poison_memory_region(behind, rest);
    } else {
      __asan_unpoison_memory_region(memory_, before);
      __asan_unpoison_memory_region(behind, rest);
    }
#else
    (void)on;
#endif
  }

  vit::DType type_;
  int64_t count_, size_;
  Use use_;
  uint8_t *memory_, *data_, *end_;
  std::vector<uint8_t> kept_;
};

// The expected values of a result, and their tolerances.
struct Expected {
  std::vector<double> value, tolerance;
  explicit Expected(int64_t count = 0)
      : value(static_cast<size_t>(count)), tolerance(static_cast<size_t>(count)) {}
  void set(int64_t i, double x, double error) {
    value[static_cast<size_t>(i)] = x;
    tolerance[static_cast<size_t>(i)] = error;
  }
  void add(int64_t i, double x, double error) {
    value[static_cast<size_t>(i)] += x;
    tolerance[static_cast<size_t>(i)] += error;
  }
};

// Checks values within the tolerance plus one rounding to the type. Exact zeros have tolerance 0.
inline void expect_near(const char* what, const Tensor& got, const Expected& expected) {
  EXPECT(got.count() == static_cast<int64_t>(expected.value.size()), "%s has %lld elements", what,
         number(got.count()));
  for (int64_t i = 0; i < got.count(); ++i) {
    const double want = expected.value[static_cast<size_t>(i)];
    const double tolerance = expected.tolerance[static_cast<size_t>(i)];
    const double most =
        want == 0 && tolerance == 0
            ? 0
            : tolerance + 1.001 * unit(got.type()) * fabs(want) + smallest(got.type());
    const double x = got.at(i);
    // This form of the condition rejects NaN. Infinity must be equal.
    if (fabs(x - want) <= most || x == want) continue;
    EXPECT(false, "%s[%lld] is %.9g, not %.9g +- %.3g", what, number(i), x, want, most);
    return;
  }
  ++state().checks;
}

// Scratch filled with NaN, or null while `refuse` is set or nothing is left.
inline void* allocate_scratch(int64_t bytes) {
  ScratchUse& use = scratch_use();
  ++use.calls;
  if (use.refuse || use.left-- <= 0) return nullptr;
  int64_t largest = use.largest;
  while (bytes > largest && !use.largest.compare_exchange_weak(largest, bytes)) {
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, static_cast<size_t>(bytes))) return nullptr;
  ++use.in_use;
  return memset(memory, kNan, static_cast<size_t>(bytes));
}

inline void release_scratch(void* memory) {
  --scratch_use().in_use;
  free(memory);
}

inline vit::Execution execution(vit::ParallelFor parallel_for) {
  return {parallel_for, {allocate_scratch, release_scratch}};
}

}  // namespace vit_test

#endif  // TESTS_CC_MEMORY_H_
