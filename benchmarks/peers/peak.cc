// Prints the peak rate of multiplications and additions in registers, as JSON: operations per
// second by unit, summed over the threads. Units that the processor lacks are left out.
//
// usage: peak THREADS SECONDS
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// Enough independent sums to hide the latency of two units.
constexpr int kSums = 12;
constexpr int kRounds = 20000;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

__attribute__((target("avx2,fma"))) double avx2_operations() {
  __m256 sums[kSums] = {};
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(1e-3f);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kSums; ++j) {
      sums[j] = _mm256_fmadd_ps(sums[j], factor, term);
      // Keeps the compiler from merging several rounds.
      asm volatile("" : "+x"(sums[j]));
    }
  }
  return 2.0 * 8 * kSums * kRounds;
}

__attribute__((target("avx512f"))) double avx512_operations() {
  __m512 sums[kSums] = {};
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(1e-3f);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kSums; ++j) {
      sums[j] = _mm512_fmadd_ps(sums[j], factor, term);
      asm volatile("" : "+v"(sums[j]));
    }
  }
  return 2.0 * 16 * kSums * kRounds;
}

__attribute__((target("avx512f,avx512bf16"))) double avx512_bf16_operations() {
  __m512 sums[kSums] = {};
  const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kSums; ++j) {
      sums[j] = _mm512_dpbf16_ps(sums[j], one, one);
      asm volatile("" : "+v"(sums[j]));
    }
  }
  return 2.0 * 32 * kSums * kRounds;
}

// Four sums of 16 x 16, from two tiles each of A and B of 16 x 32: the tiles of a matrix product.
__attribute__((target("amx-tile,amx-bf16"))) double amx_bf16_operations() {
  struct alignas(64) {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short row_bytes[16] = {};
    unsigned char rows[16] = {};
  } shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = 64;
    shapes.rows[i] = 16;
  }
  // The compiler does not know that the instruction reads all of it.
  asm volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int i = 0; i < kRounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * kRounds;
}

// The flags of the first CPU, each between spaces.
std::string cpu_flags() {
  std::string found = " ";
  if (FILE* file = fopen("/proc/cpuinfo", "r")) {
    char line[1 << 14];
    while (fgets(line, sizeof line, file)) {
      if (strncmp(line, "flags", 5) != 0) continue;
      line[strcspn(line, "\n")] = ' ';
      found = line;
      break;
    }
    fclose(file);
  }
  return found;
}

// Linux grants the tile registers only to processes that ask.
bool tiles_granted() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// Calls `work` on all threads for this time; every thread counts its fastest call.
double rate(double (*work)(), int threads, double seconds) {
  std::vector<double> best(threads);
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      const auto begin = Clock::now();
      do {
        const auto call = Clock::now();
        const double operations = work();
        best[i] = std::max(best[i], operations / seconds_since(call));
      } while (seconds_since(begin) < seconds);
    });
  }
  for (auto& thread : pool) thread.join();
  double sum = 0;
  for (double one : best) sum += one;
  return sum;
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count == 3 ? atoi(arguments[1]) : 0;
  const double seconds = count == 3 ? atof(arguments[2]) : 0;
  if (threads < 1 || seconds <= 0) {
    fprintf(stderr, "usage: peak THREADS SECONDS\n");
    return 2;
  }
  const std::string flags = cpu_flags();
  const auto has = [&](const char* name) {
    return flags.find(" " + std::string(name) + " ") != std::string::npos;
  };
  const char* comma = "";
  printf("{");
  const auto print = [&](const char* unit, double (*work)()) {
    printf("%s\"%s\": %.6g", comma, unit, rate(work, threads, seconds));
    comma = ", ";
  };
  if (has("avx2") && has("fma")) print("avx2", avx2_operations);
  if (has("avx512f")) print("avx512", avx512_operations);
  if (has("avx512_bf16")) print("avx512_bf16", avx512_bf16_operations);
  if (has("amx_bf16") && tiles_granted()) print("amx_bf16", amx_bf16_operations);
  printf("}\n");
}
