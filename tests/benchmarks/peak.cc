// Measures the peak rate of float32 operations on one core: multiplications and additions in
// registers, in vectors of the instruction set that this file is compiled for.
#include <chrono>

typedef float V __attribute__((vector_size(VECTOR_BYTES)));

extern "C" double peak_flops(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kSums = 12, kRounds = 100000;
  V sums[kSums] = {};
  const V factor = V{} + 0.999f, term = V{} + 1e-3f;
  double best = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto begin = Clock::now();
    for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < kSums; ++j) sums[j] = sums[j] * factor + term;
      // Keeps the compiler from merging several rounds.
#pragma GCC unroll 12
      for (int j = 0; j < kSums; ++j) asm volatile("" : "+v"(sums[j]));
    }
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    const double operations = 2.0 * kRounds * kSums * sizeof(V) / sizeof(float);
    if (operations / spent > best) best = operations / spent;
  } while (Clock::now() < end);
  return best;
}
