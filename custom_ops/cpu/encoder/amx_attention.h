// Attention forward with the tile registers of Intel AMX, for bfloat16: cc/attention_problem.h
// defines the problem. It has no bias, and statistics are not written.
//
// Queries are rows. All logits of 32 queries are computed, then their softmax, and then the sums of
// values: they stay in the L2 cache up to some thousands of tokens.
#ifndef CUSTOM_OPS_CPU_ENCODER_AMX_ATTENTION_H_
#define CUSTOM_OPS_CPU_ENCODER_AMX_ATTENTION_H_

#include "custom_ops/cpu/attention/logits.h"
#include "custom_ops/cpu/gemm/amx_product.h"
#include "custom_ops/cpu/simd/math.h"

#if defined(__AMX_BF16__)

namespace vit {
namespace VIT_ISA {

// Minimax for 2^x on [-1/2, 1/2]: relative error 2.6e-6, far below the rounding of the result to
// bfloat16.
constexpr float kExp2Short[] = {0.999999285f, 0.693121791f, 0.240247443f, 0.0559178591f,
                                0.00957010221f};

// A unit is a group of queries of a head of an image. The head size is even.
struct AmxAttention {
  static constexpr int64_t kRows = 16;
  static constexpr int64_t kQueries = 2 * kRows;  // of a block
  static constexpr int64_t kUnit = 32;  // keys and numbers of a head are padded to it

  static int64_t groups(const AttentionShape& shape) {
    return group_count_of(lines_of(shape), ceil_divide(shape.tokens, kQueries), kManyLines);
  }

  static int64_t units(const AttentionForwardProblem& problem) {
    return problem.shape.tokens ? lines_of(problem.shape) * groups(problem.shape) : 0;
  }

  static double unit_cycles(const AttentionForwardProblem& problem) {
    const double tokens = static_cast<double>(problem.shape.tokens);
    return tokens * tokens / static_cast<double>(groups(problem.shape)) + 2000;
  }

  static int64_t scratch_bytes(const AttentionForwardProblem& problem) {
    const Sizes sizes(problem.shape);
    return 2 * Scratch::bytes<Pair>(sizes.keys * sizes.head / 2) +
           Scratch::bytes<Pair>(kQueries * sizes.head / 2) +
           Scratch::bytes<float>(kQueries * sizes.logits_stride) +
           Scratch::bytes<Bfloat16>(kQueries * sizes.keys) +
           Scratch::bytes<float>(kQueries * sizes.head);
  }

  static void run(const AttentionForwardProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    const Sizes sizes(problem.shape);
    Scratch scratch(memory);
    Block block;
    block.keys = scratch.take<Pair>(sizes.keys * sizes.head / 2);
    block.values = scratch.take<Pair>(sizes.keys * sizes.head / 2);
    block.queries = scratch.take<Pair>(kQueries * sizes.head / 2);
    block.logits = scratch.take<float>(kQueries * sizes.logits_stride);
    block.weights = scratch.take<Bfloat16>(kQueries * sizes.keys);
    block.sums = scratch.take<float>(kQueries * sizes.head);
    const int64_t count = groups(problem.shape);
    const Blocking blocks(ceil_divide(problem.shape.tokens, kQueries), 1);
    Blocking group(blocks.total, 1);
    group.count = count;
    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const Line<Bfloat16> line(problem.shape, unit / count);
      const Bfloat16* qkv = static_cast<const Bfloat16*>(problem.qkv) + line.offset;
      if (packed != unit / count) {
        pack_keys(line, qkv + line.width, sizes, block.keys);
        pack_values(line, qkv + 2 * line.width, sizes, block.values);
        packed = unit / count;
      }
      const int64_t first = group.begin(unit % count), after = first + group.size(unit % count);
      for (int64_t i = first; i < after; ++i) {
        run_block(problem, line, qkv, i * kQueries, sizes, block);
      }
    }
    _tile_release();
  }

 private:
  struct Sizes {
    int64_t keys, head;  // padded
    int64_t logits_stride;

    explicit Sizes(const AttentionShape& shape)
        : keys(round_up(shape.tokens, kUnit)),
          head(round_up(shape.head_size, kUnit)),
          logits_stride(keys + kRows) {}
  };

  struct Block {
    Pair *keys, *values;  // [head / 2, keys] and [keys / 2, head]
    Pair* queries;  // [kQueries, head / 2]
    float* logits;  // [kQueries, logits_stride]
    Bfloat16* weights;  // [kQueries, keys], not normalised
    float* sums;  // [kQueries, head]
  };

  static void pack_keys(const Line<Bfloat16>& line, const Bfloat16* from, const Sizes& sizes,
                        Pair* to) {
    pack_elements<Pair>(from, line.step, line.tokens, line.size, to, sizes.keys);
    const int64_t filled = line.size / 2 * sizes.keys;
    clear(to + filled, sizes.head / 2 * sizes.keys - filled);
  }

  static void pack_values(const Line<Bfloat16>& line, const Bfloat16* from, const Sizes& sizes,
                          Pair* to) {
    pack_right(from, line.step, line.tokens, line.size, to, sizes.head);
    const int64_t filled = ceil_divide(line.tokens, 2) * sizes.head;
    clear(to + filled, sizes.keys / 2 * sizes.head - filled);
  }

  // `count` is a multiple of 16.
  static void clear(Pair* to, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) _mm512_storeu_si512(to + i, _mm512_setzero_si512());
  }

  // 32 queries from `query` on, or those that are left, against all keys.
  static void run_block(const AttentionForwardProblem& problem, const Line<Bfloat16>& line,
                        const Bfloat16* qkv, int64_t query, const Sizes& sizes, Block& block) {
    const int64_t left = line.tokens - query, queries = left < kQueries ? left : kQueries;
    const int64_t first = queries < kRows ? queries : kRows;
    for (int64_t i = 0; i < queries; ++i) {
      const Bfloat16* from = qkv + (query + i) * line.step;
      Bfloat16* to = reinterpret_cast<Bfloat16*>(block.queries + i * (sizes.head / 2));
      for (int64_t j = 0; j < sizes.head; j += kLanes<float>) {
        // The conversion is exact both ways, but for subnormal numbers, which tiles read as 0.
        const int64_t count = line.size - j;
        store_rounded(to + j, count > 0 ? load_first(from + j, count) : Vector<float>{});
      }
    }
    const AmxShapes shapes(first, queries - first);
    const Bfloat16* rows = reinterpret_cast<const Bfloat16*>(block.queries);
    multiply(queries > kRows, rows, sizes.head, block.keys, sizes.keys, sizes.head, sizes.keys,
             block.logits, sizes.logits_stride);
    Vector<float> inverse[kQueries];
    const float factor = static_cast<float>(kLog2E * problem.scale);
    for (int64_t i = 0; i < queries; ++i) {
      inverse[i] =
          broadcast<float>(1 / exponentials(block.logits + i * sizes.logits_stride, line.tokens,
                                            factor, sizes.keys, block.weights + i * sizes.keys));
    }
    multiply(queries > kRows, block.weights, sizes.keys, block.values, sizes.head, sizes.keys,
             sizes.head, block.sums, sizes.head);
    Bfloat16* out = static_cast<Bfloat16*>(problem.out) + line.out_offset + query * line.out_step;
    for (int64_t i = 0; i < queries; ++i, out += line.out_step) {
      for (int64_t j = 0; j < line.size; j += kLanes<float>) {
        const Vector<float> x = load(block.sums + i * sizes.head + j) * inverse[i];
        if (line.size - j >= kLanes<float>) {
          store_rounded(out + j, x);
        } else {
          store_first(out + j, x, line.size - j);
        }
      }
    }
  }

  // c[queries, columns] = a[queries, depth] b[depth / 2, columns], with tiles 0 to 3.
  static void multiply(bool has_second, const Bfloat16* a, int64_t a_row, const Pair* b,
                       int64_t b_row, int64_t depth, int64_t columns, float* c, int64_t c_row) {
    finish_stores();
    const int64_t a_bytes = a_row * 2, b_bytes = b_row * 4, c_bytes = c_row * 4;
    for (int64_t j = 0; j < columns; j += 2 * kRows) {
      _tile_zero(0);
      _tile_zero(1);
      if (has_second) {
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int64_t k = 0; k < depth; k += kUnit) {
        const Pair* now = b + k / 2 * b_row + j;
        _tile_loadd(4, a + k, a_bytes);
        _tile_loadd(6, now, b_bytes);
        _tile_loadd(7, now + kRows, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (has_second) {
          _tile_loadd(5, a + kRows * a_row + k, a_bytes);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, c + j, c_bytes);
      _tile_stored(1, c + j + kRows, c_bytes);
      if (has_second) {
        _tile_stored(2, c + kRows * c_row + j, c_bytes);
        _tile_stored(3, c + kRows * c_row + j + kRows, c_bytes);
      }
    }
  }

  // weights = exp2((logits - largest) * factor); from `count` to `padded`, a multiple of 32, they
  // are 2^-125, and the values there are 0.
  // Returns the sum of the numbers before they are rounded. Replaces the logits beyond `count`.
  static VIT_INLINE float exponentials(float* logits, int64_t count, float factor, int64_t padded,
                                       Bfloat16* weights) {
    constexpr int64_t kLane = kLanes<float>;
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    for (int64_t j = count / kLane * kLane; j < padded; j += kLane) {
      const int64_t rest = count > j ? count - j : 0;
      const __mmask16 used = static_cast<__mmask16>((1u << rest) - 1);
      _mm512_storeu_ps(logits + j, _mm512_mask_loadu_ps(lowest, used, logits + j));
    }
    __m512 even = lowest, odd = lowest;
    for (int64_t j = 0; j < padded; j += 2 * kLane) {
      even = _mm512_max_ps(_mm512_loadu_ps(logits + j), even);
      odd = _mm512_max_ps(_mm512_loadu_ps(logits + j + kLane), odd);
    }
    const Vector<float> largest = broadcast<float>(_mm512_reduce_max_ps(_mm512_max_ps(even, odd)));
    Vector<float> total = {}, other = {};
    for (int64_t j = 0; j < padded; j += 2 * kLane) {
      const Vector<float> first = exp2_short((load(logits + j) - largest) * factor);
      const Vector<float> second = exp2_short((load(logits + j + kLane) - largest) * factor);
      total += first;
      other += second;
      store_rounded(weights + j, first);
      store_rounded(weights + j + kLane, second);
    }
    return _mm512_reduce_add_ps((__m512)(total + other));
  }

  // 2^x for x <= 0, but not below 2^-125, which changes no sum: the processor takes 100 times
  // longer for a result that is not a normal number.
  static VIT_INLINE Vector<float> exp2_short(Vector<float> x) {
    x = maximum<float>(broadcast<float>(-125.0f), x);
    const __m512 whole =
        _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vector<float> result = polynomial<float>(x - (Vector<float>)whole, kExp2Short);
    return (Vector<float>)_mm512_scalef_ps((__m512)result, whole);
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // __AMX_BF16__

#endif  // CUSTOM_OPS_CPU_ENCODER_AMX_ATTENTION_H_
