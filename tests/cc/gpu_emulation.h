// Runs the kernels of custom_ops/cuda on the CPU: defines what custom_ops/cuda/device.h defines for
// GPUs, which explains the functions. Each thread of a block is a fiber. It runs until it waits for
// its warp or its block, so all index arithmetic, every copy and every exchange happens as on a
// GPU, and an address sanitizer sees wrong addresses. What is checked beside that:
// - all threads reach the same barrier or exchange, called from the same place by the same
//   functions, with addresses that are aligned as needed;
// - blocks have no more threads than the kernel is compiled for, and no more shared memory than the
//   GPU has; shared memory begins as NaN and has the size of the launch;
// - data of asynchronous copies arrive as late as they may, or at once (see `reversed`);
// - threads do not wait for each other forever, and barriers in shared memory begin before they are
//   used and end between two phases.
// Warps run one after another between barriers, in both orders (see `reversed`): with a barrier
// missing, the results of one order are wrong.
#ifndef TESTS_CC_GPU_EMULATION_H_
#define TESTS_CC_GPU_EMULATION_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <vector>

#include "custom_ops/cuda/cuda_execution.h"
#include "custom_ops/cuda/launch.h"
#include "tests/cc/numbers.h"

// The last parameter tells launch() how many threads a block may have.
#define VIT_KERNEL(threads, blocks, name, parameter) \
  [[maybe_unused]] static void name(parameter, vit_test::LaunchBounds<(threads)>)
#define VIT_DEVICE static inline
#define VIT_DEVICE_METHOD inline

// Functions whose callers are compared: no two calls may become one.
#define VIT_TEST_CALLED __attribute__((noinline, nomerge))
// Functions that only move numbers between the variables of threads, which needs no sanitizer.
#define VIT_TEST_UNCHECKED __attribute__((no_sanitize("address", "undefined", "coverage")))

namespace vit_test {

template <int threads>
struct LaunchBounds {};

// Runs thread(0) to thread(threads - 1) of a block. `reversed`: the last warp first.
void run_block(int threads, int64_t shared_bytes, bool reversed,
               const std::function<void()>& thread);

// The order of blocks and warps in the launches that follow; false at first.
void set_reversed(bool reversed);
bool is_reversed();

// The shared memory that a block of the GPU may have, for the launches that follow. At first it is
// that of sm_86, sm_89 and sm_120, the least that there is from sm_80 on.
constexpr int64_t kLeastSharedBytes = 99 * 1024;
void set_most_shared_bytes(int64_t bytes);
// The multiprocessors of a GPU that has the products of warpgroups; at first 0, one without.
void set_warpgroup_multiprocessors(int count);

// For the functions below, of the thread that runs.
extern int running_thread;  // in its block
int64_t* emulated_block();
char* emulated_shared_memory();
VIT_TEST_CALLED void emulated_sync_block();
void emulated_copy(void* shared, const void* global, bool valid);
void emulated_commit();
void emulated_wait(int pending);
void emulated_word_copy(void* shared, const void* global, bool valid);

// Of a barrier in shared memory.
struct BarrierState {
  int16_t arrivals;  // of a phase
  int16_t missing;  // of this phase
  int32_t phase;  // number of the current phase
};
VIT_TEST_CALLED void emulated_wait_for(const BarrierState* barrier, int phase);
void emulated_begin(BarrierState* barrier, int arrivals);
void emulated_arrive(BarrierState* barrier);
bool emulated_has_ended(const BarrierState* barrier, int phase);

// Stops the program with a message about the kernel; arguments as for printf.
[[noreturn]] __attribute__((format(printf, 1, 2))) void emulation_error(const char* text, ...);

// Work of tensor cores of the thread that runs, which is done when it waits for it, or at once (see
// `reversed`).
void emulated_start(const std::function<void()>& work);
void emulated_finish();

// All threads of the warp call it; once they have, `action` runs with their arguments.
VIT_TEST_CALLED void emulated_exchange(const char* name, void* argument,
                                       void (*action)(void* const (&)[32]));

// `threads`: the most per block that the kernel is compiled for.
void expect_launchable(const vit::LaunchShape& shape, int threads);

inline void expect_aligned(const void* address, int bytes = 16) {
  if (reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes)) {
    emulation_error("an address is not aligned");
  }
}

}  // namespace vit_test

namespace vit {

constexpr int kWarp = 32;

// clang-format off
struct Bfloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };
// clang-format on

VIT_DEVICE int thread_index() { return vit_test::running_thread; }
VIT_DEVICE int lane_index() { return vit_test::running_thread % kWarp; }
VIT_DEVICE int warp_index() { return vit_test::running_thread / kWarp; }
VIT_DEVICE int64_t block_index() { return *vit_test::emulated_block(); }
VIT_DEVICE char* shared_memory() { return vit_test::emulated_shared_memory(); }
VIT_DEVICE void sync_block() { vit_test::emulated_sync_block(); }
VIT_DEVICE void sync_warp() {
  vit_test::emulated_exchange("sync_warp", nullptr, [](void* const(&)[32]) {});
}

template <class T>
struct Shuffle {
  T value;
  int from;
  T result;
};

template <class T>
T shuffled(T value, int from) {
  Shuffle<T> own = {value, from, value};
  vit_test::emulated_exchange("shuffle", &own, [](void* const(&lanes)[32]) {
    for (void* lane : lanes) {
      auto& to = *static_cast<Shuffle<T>*>(lane);
      to.result = static_cast<Shuffle<T>*>(lanes[to.from % kWarp])->value;
    }
  });
  return own.result;
}

template <class T>
VIT_DEVICE T shuffle_xor(T value, int mask) {
  return shuffled(value, lane_index() ^ mask);
}

template <class T>
VIT_DEVICE T shuffle(T value, int lane) {
  return shuffled(value, lane);
}

VIT_DEVICE bool any_of_warp(bool value) {
  uint32_t any = value;
  vit_test::emulated_exchange("any_of_warp", &any, [](void* const(&lanes)[32]) {
    uint32_t found = 0;
    for (void* lane : lanes) found |= *static_cast<uint32_t*>(lane);
    for (void* lane : lanes) *static_cast<uint32_t*>(lane) = found;
  });
  return any;
}

struct MatrixRead {
  uint16_t row[8];
  uint32_t* matrices;
  bool is_transposed;
};

VIT_TEST_UNCHECKED inline void read_matrices(void* const (&lanes)[32]) {
  for (int t = 0; t < 32; ++t) {
    const auto& read = *static_cast<MatrixRead*>(lanes[t]);
    for (int i = 0; i < 4; ++i) {
      read.matrices[i] = 0;
      for (int j = 0; j < 2; ++j) {
        const int row = t / 4, column = 2 * (t % 4) + j;
        const int lane = 8 * i + (read.is_transposed ? column : row);
        const uint32_t bits =
            static_cast<MatrixRead*>(lanes[lane])->row[read.is_transposed ? row : column];
        read.matrices[i] |= bits << 16 * j;
      }
    }
  }
}

template <bool is_transposed>
VIT_DEVICE void load_matrices(const void* row, uint32_t (&matrices)[4]) {
  vit_test::expect_aligned(row);
  MatrixRead read = {{}, matrices, is_transposed};
  memcpy(read.row, row, 16);
  vit_test::emulated_exchange("load_matrices", &read, read_matrices);
}

// All numbers of a type of 16 bits.
template <class T>
const float* values_of_bits() {
  static const std::vector<float> values = [] {
    constexpr bool is_half = sizeof(T*) && __is_same(T, Float16);
    std::vector<float> all(1 << 16);
    for (uint32_t i = 0; i < all.size(); ++i) {
      const auto bits = static_cast<uint16_t>(i);
      all[i] =
          static_cast<float>(vit_test::decode(is_half ? vit_test::kHalf : vit_test::kBfloat, bits));
    }
    return all;
  }();
  return values.data();
}

struct Product {
  const uint32_t* a;
  uint32_t b[2];
  float* sums;
};

template <class T>
VIT_TEST_UNCHECKED void multiply(void* const (&lanes)[32]) {
  using Row = float __attribute__((vector_size(32)));
  const float* values = values_of_bits<T>();
  float a[16][16];
  Row b[16], sums[16];
  for (int t = 0; t < 32; ++t) {
    const auto& product = *static_cast<Product*>(lanes[t]);
    const int g = t / 4, c = 2 * (t % 4);
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) {
        a[g + i % 2 * 8][c + i / 2 * 8 + j] = values[product.a[i] >> 16 * j & 0xffff];
        if (i < 2) b[c + i * 8 + j][g] = values[product.b[i] >> 16 * j & 0xffff];
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    sums[row] = Row{};
    for (int k = 0; k < 16; ++k) sums[row] += a[row][k] * b[k];
  }
  for (int t = 0; t < 32; ++t) {
    const auto& product = *static_cast<Product*>(lanes[t]);
    for (int i = 0; i < 4; ++i) {
      product.sums[i] += sums[t / 4 + i / 2 * 8][2 * (t % 4) + i % 2];
    }
  }
}

template <class T>
VIT_DEVICE void multiply_add(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&sums)[4]) {
  Product product = {a, {b0, b1}, sums};
  vit_test::emulated_exchange("multiply_add", &product, multiply<T>);
}

// As warpgroup_products.h explains. A warp computes its own rows, so the warps of a warpgroup need
// not wait for each other.
constexpr bool kHasWarpgroups = true;

struct SharedMatrices {
  const char* data;
  int k_bytes, n_bytes;

  static SharedMatrices at(const void* data, int k_bytes, int n_bytes) {
    vit_test::expect_aligned(data);
    if (k_bytes % 16 || n_bytes % 16) vit_test::emulation_error("matrices are not aligned");
    return {static_cast<const char*>(data), k_bytes, n_bytes};
  }
  SharedMatrices further(int bytes) const { return {data + bytes, k_bytes, n_bytes}; }
};

VIT_DEVICE void publish_to_products() {}
template <int kTiles>
VIT_DEVICE void pin(float (&)[kTiles][4]) {}
VIT_DEVICE void begin_products() {}

struct WarpProducts {
  const uint32_t* a;
  SharedMatrices b;
  float (*sums)[4];
  int columns;
  bool of_rows, add;
};

template <class T>
VIT_TEST_UNCHECKED void multiply_shared(const WarpProducts (&lanes)[32]) {
  const float* values = values_of_bits<T>();
  const WarpProducts& first = lanes[0];
  float a[16][16];
  for (int t = 0; t < 32; ++t) {
    for (int i = 0; i < 8; ++i) {
      a[t / 4 + i / 2 % 2 * 8][2 * (t % 4) + i / 4 * 8 + i % 2] =
          values[lanes[t].a[i / 2] >> i % 2 * 16 & 0xffff];
    }
  }
  for (int n = 0; n < first.columns; ++n) {
    float b[16];
    for (int k = 0; k < 16; ++k) {
      const int row = first.of_rows ? k % 8 : n % 8, column = first.of_rows ? n % 8 : k % 8;
      uint16_t bits;
      memcpy(
          &bits,
          first.b.data + k / 8 * first.b.k_bytes + n / 8 * first.b.n_bytes + row * 16 + column * 2,
          2);
      b[k] = values[bits];
    }
    for (int row = 0; row < 16; ++row) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k];
      const WarpProducts& lane = lanes[row % 8 * 4 + n % 8 / 2];
      float& total = lane.sums[n / 8][row / 8 * 2 + n % 2];
      total = lane.add ? total + sum : sum;
    }
  }
}

template <class T, int kColumns, bool kOfRows, int kTiles>
VIT_DEVICE void start_products(const uint32_t (&a)[4], SharedMatrices b, float (&sums)[kTiles][4],
                               bool add) {
  WarpProducts own = {a, b, sums, kColumns, kOfRows, add};
  vit_test::emulated_exchange("start_products", &own, [](void* const(&lanes)[32]) {
    WarpProducts all[32];
    for (int i = 0; i < 32; ++i) all[i] = *static_cast<const WarpProducts*>(lanes[i]);
    vit_test::emulated_start([all] { multiply_shared<T>(all); });
  });
}
VIT_DEVICE void wait_for_products() {
  vit_test::emulated_exchange("wait_for_products", nullptr,
                              [](void* const(&)[32]) { vit_test::emulated_finish(); });
}

VIT_DEVICE void copy_async(void* shared, const void* global, bool valid) {
  vit_test::expect_aligned(shared);
  vit_test::expect_aligned(global);
  vit_test::emulated_copy(shared, global, valid);
}
VIT_DEVICE void copy_word_async(void* shared, const void* global, bool valid) {
  vit_test::expect_aligned(shared, 4);
  vit_test::expect_aligned(global, 4);
  vit_test::emulated_word_copy(shared, global, valid);
}
VIT_DEVICE void commit_copies() { vit_test::emulated_commit(); }
template <int pending>
VIT_DEVICE void wait_for_copies() {
  vit_test::emulated_wait(pending);
}

// As shared_barrier.h explains.
struct SharedBarrier {
  static constexpr int kBytes = sizeof(vit_test::BarrierState);
  char* data;

  vit_test::BarrierState* state() const {
    vit_test::expect_aligned(data, kBytes);
    return reinterpret_cast<vit_test::BarrierState*>(data);
  }
  void init(int arrivals) const { vit_test::emulated_begin(state(), arrivals); }
  void arrive() const { vit_test::emulated_arrive(state()); }
  bool has_ended(int phase) const { return vit_test::emulated_has_ended(state(), phase); }
  void wait(int phase) const { vit_test::emulated_wait_for(state(), phase); }
};
template <int registers>
VIT_DEVICE void claim_registers() {}
template <int registers>
VIT_DEVICE void release_registers() {}

template <int kWords>
VIT_DEVICE void load_words(const void* from, uint32_t* words) {
  vit_test::expect_aligned(from, 4 * kWords);
  memcpy(words, from, 4 * kWords);
}
template <int kWords>
VIT_DEVICE void store_words(void* to, const uint32_t* words) {
  vit_test::expect_aligned(to, 4 * kWords);
  memcpy(to, words, 4 * kWords);
}

VIT_DEVICE float to_float(float x) { return x; }
VIT_DEVICE float to_float(Bfloat16 x) { return values_of_bits<Bfloat16>()[x.bits]; }
VIT_DEVICE float to_float(Float16 x) { return values_of_bits<Float16>()[x.bits]; }
VIT_DEVICE float to_float(uint8_t x) { return x; }

template <class T>
VIT_DEVICE T rounded(float x);
template <>
inline float rounded<float>(float x) {
  return x;
}
template <>
inline Bfloat16 rounded<Bfloat16>(float x) {
  return {vit_test::encode(vit_test::kBfloat, x)};
}
template <>
inline Float16 rounded<Float16>(float x) {
  return {vit_test::encode(vit_test::kHalf, x)};
}

template <class T>
VIT_DEVICE uint32_t packed(float low, float high) {
  return rounded<T>(low).bits | uint32_t{rounded<T>(high).bits} << 16;
}

VIT_DEVICE float rounded_product(float x, float y) { return x * y; }
VIT_DEVICE float fused_product(float x, float y, float sum) { return fmaf(x, y, sum); }
VIT_DEVICE float power_of_two(float x) { return exp2f(x); }
VIT_DEVICE float logarithm_of_two(float x) { return log2f(x); }
VIT_DEVICE float square_root(float x) { return sqrtf(x); }
VIT_DEVICE float fast_power_of_two(float x) {
  const float result = exp2f(x);
  return result < 0x1p-126f ? 0 : result;
}

template <class Parameters, int threads>
CudaResult launch(void (*kernel)(Parameters, vit_test::LaunchBounds<threads>),
                  const LaunchShape& shape, const Parameters& parameters, const CudaExecution&) {
  if (shape.blocks <= 0 || shape.blocks > kMaxBlocks) return CudaResult::kTooLarge;
  vit_test::expect_launchable(shape, threads);
  const bool reversed = vit_test::is_reversed();
  for (int64_t i = 0; i < shape.blocks; ++i) {
    *vit_test::emulated_block() = reversed ? shape.blocks - 1 - i : i;
    vit_test::run_block(shape.threads, shape.shared_bytes, reversed,
                        [&] { kernel(parameters, {}); });
  }
  return CudaResult::kOk;
}

}  // namespace vit

#endif  // TESTS_CC_GPU_EMULATION_H_
