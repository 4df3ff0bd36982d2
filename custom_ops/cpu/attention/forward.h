// Attention forward: cc/attention_problem.h defines the problem, logits.h the layout of blocks.
#ifndef CUSTOM_OPS_CPU_ATTENTION_FORWARD_H_
#define CUSTOM_OPS_CPU_ATTENTION_FORWARD_H_

#include "custom_ops/cpu/attention/logits.h"
#include "custom_ops/cpu/scratch.h"
#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

// S: elements in memory; E: elements of the products, either the numbers T themselves or, for an
// even head size, Pairs of bfloat16. A unit is a group of queries of a line of one head.
template <class S, class E = Accumulator<S>>
struct AttentionForward {
  using T = Accumulator<S>;
  static constexpr int64_t kPack = kPackSize<E>;

  static int64_t units(const AttentionForwardProblem& problem) {
    return lines_of(problem.shape) * QueryBlocks<T>(problem.shape).groups.count;
  }

  static double unit_cycles(const AttentionForwardProblem& problem) {
    return line_cycles(problem.shape, 2) /
           static_cast<double>(QueryBlocks<T>(problem.shape).group_count());
  }

  static int64_t scratch_bytes(const AttentionForwardProblem& problem) {
    const int64_t size = problem.shape.head_size;
    const int64_t rows = round_up(problem.shape.tokens, kPack) * size / kPack;
    const int64_t block = kMaxKeys<T> * kMaxQueries<T>;
    return 2 * Scratch::bytes<E>(rows) + 2 * Scratch::bytes<T>(size * kMaxQueries<T>) +
           Scratch::bytes<T>(block) * (problem.bias.data ? 2 : 1);
  }

  static void run(const AttentionForwardProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    const QueryBlocks<T> blocks(problem.shape);
    const int64_t groups = blocks.groups.count;
    const int64_t size = problem.shape.head_size, tokens = problem.shape.tokens;
    Scratch scratch(memory);
    Block block;
    const int64_t rows = round_up(tokens, kPack) * size / kPack;
    E* const key_rows = scratch.take<E>(rows);
    E* const value_rows = scratch.take<E>(rows);
    block.queries = scratch.take<E>(size * kMaxQueries<T>);
    block.sums = scratch.take<T>(size * kMaxQueries<T>);
    block.logits = scratch.take<T>(kMaxKeys<T> * kMaxQueries<T>);
    block.bias = problem.bias.data ? scratch.take<T>(kMaxKeys<T> * kMaxQueries<T>) : nullptr;

    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const Line<S> line(problem.shape, unit / groups);
      const S* qkv = static_cast<const S*>(problem.qkv) + line.offset;
      if (packed != unit / groups) {
        block.keys = rows_of(qkv + line.width, line, key_rows, block.key_step);
        if constexpr (kPack == 1) {
          block.values = rows_of(qkv + 2 * line.width, line, value_rows, block.value_step);
        } else {
          pack_right(qkv + 2 * line.width, line.step, tokens, size, value_rows, size);
          block.values = value_rows;
          block.value_step = size;
        }
        packed = unit / groups;
      }
      const int64_t group = unit % groups;
      const int64_t first = blocks.groups.begin(group), count = blocks.groups.size(group);
      const int64_t next = unit / groups + 1;
      block.prefetcher = Prefetcher();
      if (group == groups - 1 && next * groups < end) {
        block.prefetcher = prefetcher_of(problem, Line<S>(problem.shape, next));
      }
      block.prefetch_interval = count;
      for (int64_t i = first; i < first + count; ++i) {
        const int64_t query = blocks.vectors.begin(i) * kLanes<T>;
        with_vectors(blocks.vectors.size(i),
                     [&](auto known) { run_block<known.count>(problem, line, query, block); });
      }
    }
  }

  static Prefetcher prefetcher_of(const AttentionForwardProblem& problem, const Line<S>& line) {
    Prefetcher prefetcher(line);
    for (int part = 0; part < 3; ++part) {
      const int64_t at = line.offset + part * line.width;
      prefetcher.read(static_cast<const S*>(problem.qkv) + at, line.step);
    }
    prefetcher.write(static_cast<S*>(problem.out) + line.out_offset, line.out_step);
    return prefetcher;
  }

  struct Block {
    // All keys and values of the line: [tokens, size / kPack] and [tokens / kPack, size]. The steps
    // are the elements between rows.
    const E *keys, *values;
    int64_t key_step, value_step;
    E* queries;        // [size / kPack, columns]: q^T
    T* sums;           // [size, columns]: the unnormalised result
    T *logits, *bias;  // [keys, columns]
    Prefetcher prefetcher;
    int64_t prefetch_interval;  // rows of logits per prefetched token
  };

  // `kVectors` vectors of queries, starting at `query`, against all keys.
  template <int kVectors>
  static void run_block(const AttentionForwardProblem& problem, const Line<S>& line, int64_t query,
                        Block& block) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    const int64_t size = line.size;
    const int64_t queries = line.tokens - query < kColumns ? line.tokens - query : kColumns;
    const S* q = static_cast<const S*>(problem.qkv) + line.offset + query * line.step;
    pack_queries(q, line, queries, problem.scale, block.queries, kColumns);
    const LineBias<T> bias(problem.bias, line.batch, line.line, line.head);

    const Vector<T> lowest = broadcast<T>(-static_cast<T>(__builtin_inf()));
    Vector<T> maxima[kVectors], totals[kVectors];
    Integers<T> open[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      maxima[v] = lowest;
      totals[v] = Vector<T>{};
      open[v] = Integers<T>{};
    }
    const Blocking key_blocks(ceil_divide(line.tokens, kPack), kMaxKeys<T> / kPack);
    for (int64_t i = 0; i < key_blocks.count; ++i) {
      const int64_t key = key_blocks.begin(i) * kPack;
      const int64_t rest = line.tokens - key, most = key_blocks.size(i) * kPack;
      const int64_t keys = rest < most ? rest : most;
      const T factor = compute_logits<E, kVectors>(line, problem.scale, bias, block.keys,
                                                   block.key_step, block.queries, key, keys, query,
                                                   block.logits, block.bias, open);
      exponentials<kVectors>(block, keys, factor, maxima, totals, i ? block.sums : nullptr, size);
      multiply<E>(size, kVectors, key_blocks.size(i), block.values + key / kPack * block.value_step,
                  1, block.value_step, reinterpret_cast<const E*>(block.logits), kColumns,
                  block.sums, kColumns, i > 0);
    }

    T* largest = static_cast<T*>(problem.statistics) + 2 * line.first_query(problem.shape) + query;
    Vector<T> inverse[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      inverse[v] = T(1) / totals[v];
      // If no logit is finite, the total is 0 and the result NaN, as in softmax.
      const Vector<T> nan = broadcast<T>(static_cast<T>(__builtin_nan("")));
      Vector<T> log2_total = totals[v] > T(0) ? log2<T>(totals[v]) : nan;
      if (bias.data) {
        maxima[v] = open[v] ? maxima[v] : Vector<T>{};
        log2_total = open[v] ? log2_total : -lowest;
        clear_columns<T>(block.sums + v * kLanes<T>, kColumns, size, open[v]);
        inverse[v] = open[v] ? inverse[v] : Vector<T>{};
      }
      const int64_t count = queries - v * kLanes<T>;
      store_first(largest + v * kLanes<T>, maxima[v], count);
      store_first(largest + line.tokens + v * kLanes<T>, log2_total, count);
      if ((v + 1) * kLanes<T> >= queries) {
        for (int rest = v + 1; rest < kVectors; ++rest) inverse[rest] = Vector<T>{};
        break;
      }
    }
    S* out = static_cast<S*>(problem.out) + line.out_offset + query * line.out_step;
    unpack_columns(block.sums, kColumns, inverse, out, line.out_step, queries, size);
  }

  // Replaces logits by exp2((logits - maxima) * factor), as elements [keys / kPack, columns].
  // Updates the running maxima, and rescales totals and sums to the new maxima (the running
  // softmax). `sums` is null for the first block, which has no sums yet.
  template <int kVectors>
  static VIT_INLINE void exponentials(Block& block, int64_t keys, T factor,
                                      Vector<T> (&maxima)[kVectors], Vector<T> (&totals)[kVectors],
                                      T* sums, int64_t size) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    T* const logits = block.logits;
    const Vector<T> lowest = broadcast<T>(-static_cast<T>(__builtin_inf()));
    Vector<T> highest[kVectors], shift[kVectors], rescale[kVectors];
    // The sums of this block alone: the rounding error of a sum grows with its length, and
    // the error of the total scales the whole row of the result.
    Vector<T> sums_of_block[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      highest[v] = lowest;
      sums_of_block[v] = Vector<T>{};
    }
    for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        highest[v] = maximum<T>(load(logits + j * kColumns + v * kLanes<T>), highest[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const Vector<T> before = maxima[v];
      maxima[v] = maximum<T>(highest[v], before);
      // In a column of -inf only, 0 keeps the exponentials at 0 instead of NaN.
      shift[v] = maxima[v] == lowest ? Vector<T>{} : maxima[v];
      rescale[v] = exp2((before - shift[v]) * factor);
    }
    if (keys % kPack) {  // the last pair holds only one key
      for (int v = 0; v < kVectors; ++v) {
        store<T>(logits + keys * kColumns + v * kLanes<T>, lowest);
      }
    }
    for (int64_t j = 0, countdown = 0; j < keys; j += kPack) {
      if (--countdown < 0) {
        block.prefetcher.prefetch_token();
        countdown = block.prefetch_interval - 1;
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        T* at = logits + j * kColumns + v * kLanes<T>;
        const Vector<T> e = exp2((load(at) - shift[v]) * factor);
        sums_of_block[v] += e;
        if constexpr (kPack == 1) {
          store<T>(at, e);
        } else {
          const Vector<T> after = exp2((load(at + kColumns) - shift[v]) * factor);
          sums_of_block[v] += after;
          store_pairs(logits + j / kPack * kColumns + v * kLanes<T>, e, after);
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) totals[v] = totals[v] * rescale[v] + sums_of_block[v];
    if (!sums) return;
    for (int64_t j = 0; j < size; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        T* at = sums + j * kColumns + v * kLanes<T>;
        store<T>(at, load(at) * rescale[v]);
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_FORWARD_H_
