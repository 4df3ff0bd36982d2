// Checks that continue after a failure, and random numbers, for all tests of the kernels.
#ifndef TESTS_CC_CHECK_H_
#define TESTS_CC_CHECK_H_

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "custom_ops/cpu/isa.h"

namespace vit_test {

struct State {
  int64_t checks = 0;
  int failures = 0;
  std::string now;                                // description of the current checks
  bool isa_ran[vit::kIsaCount] = {};              // whether for_each_isa has chosen the set
  const char* named = getenv("VIT_TEST_ISAS");    // the sets to choose; null for all
};
inline State& state() {
  static State state;
  return state;
}

inline std::string format(const char* text, va_list arguments) {
  char buffer[512];
  vsnprintf(buffer, sizeof buffer, text, arguments);
  return buffer;
}

// Sets the description of the checks that follow; failures print it.
__attribute__((format(printf, 1, 2))) inline void testing(const char* text, ...) {
  va_list arguments;
  va_start(arguments, text);
  state().now = format(text, arguments);
  va_end(arguments);
}

// The program stops after this many failures.
constexpr int kMaxFailures = 20;

__attribute__((format(printf, 3, 4))) inline void fail(const char* file, int line, const char* text,
                                                       ...) {
  va_list arguments;
  va_start(arguments, text);
  fprintf(stderr, "%s:%d: %s\n  while testing %s\n", file, line, format(text, arguments).c_str(),
          state().now.c_str());
  va_end(arguments);
  if (++state().failures < kMaxFailures) return;
  fprintf(stderr, "%d failures: the rest is not run\n", kMaxFailures);
  exit(1);
}

// An integer for "%lld".
inline long long number(int64_t x) { return static_cast<long long>(x); }

// EXPECT(condition, "format", values...): the text reports the actual value.
#define EXPECT(condition, ...)                                         \
  do {                                                                 \
    ++vit_test::state().checks;                                        \
    if (!(condition)) vit_test::fail(__FILE__, __LINE__, __VA_ARGS__); \
  } while (false)

// Whether to run a group of checks: one that the command line names, or all of them without names.
inline bool wanted(int argc, char** argv, const char* part) {
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], part) == 0) return true;
  }
  return argc < 2;
}

// The exit code of a test. No checks at all is a failure too: the command line has a wrong name.
// Prints the instruction sets that ran, so that none is left out in silence.
inline int finish() {
  std::string sets;
  for (int i = 0; i < vit::kIsaCount; ++i) {
    if (state().isa_ran[i]) sets += std::string(" ") + vit::isa_name(static_cast<vit::Isa>(i));
  }
  if (!sets.empty()) printf("instruction sets:%s\n", sets.c_str());
  printf("%lld checks, %d failures\n", number(state().checks), state().failures);
  return state().failures || !state().checks;
}

// Whether VIT_TEST_ISAS, names with spaces between, has a set; true if the variable is not set.
inline bool is_named(const char* isa) {
  const std::string sets = std::string(" ") + (state().named ? state().named : isa) + " ";
  return sets.find(std::string(" ") + isa + " ") != std::string::npos;
}

// Calls body() with each instruction set that this processor has and VIT_TEST_ISAS names.
template <class Body>
void for_each_isa(const Body& body) {
  for (int i = 0; i < vit::kIsaCount; ++i) {
    const vit::Isa isa = static_cast<vit::Isa>(i);
    if (!vit::isa_available(isa) || !is_named(vit::isa_name(isa))) continue;
    vit::choose_isa(vit::isa_name(isa));
    state().isa_ran[i] = true;
    body();
  }
  vit::choose_isa("");
}
inline const char* isa() { return vit::isa_name(vit::current_isa()); }

// The generator SplitMix64: it returns the same numbers on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // An integer in [0, count).
  int64_t below(int64_t count) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(count));
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double normal() { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

 private:
  uint64_t state_;
};

}  // namespace vit_test

#endif  // TESTS_CC_CHECK_H_
