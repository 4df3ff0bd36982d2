// Class row, distance and entropy of the attention weights. The logits are computed again, block by
// block.
#ifndef CUSTOM_OPS_CPU_ATTENTION_TAPS_H_
#define CUSTOM_OPS_CPU_ATTENTION_TAPS_H_

#include "custom_ops/cpu/attention/logits.h"
#include "custom_ops/cpu/scratch.h"
#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

// A unit is one head of one batch element. S and E are as in AttentionForward, so that the
// logits have the same bits.
template <class S, class E = Accumulator<S>>
struct AttentionTaps {
  using T = Accumulator<S>;

  static int64_t units(const AttentionTapsProblem& problem) { return lines_of(problem.shape); }

  static double unit_cycles(const AttentionTapsProblem& problem) {
    return line_cycles(problem.shape, 1);
  }

  static int64_t scratch_bytes(const AttentionTapsProblem& problem) {
    const int64_t size = problem.shape.head_size;
    return Scratch::bytes<T>(problem.shape.tokens * size) +
           Scratch::bytes<T>(size * kMaxQueries<T>) +
           Scratch::bytes<T>(kMaxKeys<T> * kMaxQueries<T>) * (problem.bias.data ? 2 : 1);
  }

  static void run(const AttentionTapsProblem& problem, int64_t begin, int64_t end, void* memory) {
    const int64_t tokens = problem.shape.tokens, size = problem.shape.head_size;
    Scratch scratch(memory);
    E* const key_rows = scratch.take<E>(tokens * size);
    E* const queries = scratch.take<E>(size * kMaxQueries<T>);
    T* logits = scratch.take<T>(kMaxKeys<T> * kMaxQueries<T>);
    T* bias = problem.bias.data ? scratch.take<T>(kMaxKeys<T> * kMaxQueries<T>) : nullptr;
    for (int64_t unit = begin; unit < end; ++unit) {
      const Line<S> line(problem.shape, unit);
      const S* qkv = static_cast<const S*>(problem.qkv) + line.offset;
      int64_t key_step;
      const E* keys = rows_of(qkv + line.width, line, key_rows, key_step);
      Sums sums = {};
      // The class row alone needs only the first vector of queries.
      const bool all = problem.distance || problem.entropy;
      const int64_t last = all ? tokens : tokens < kLanes<T> ? tokens : kLanes<T>;
      for (int64_t query = 0; query < last; query += kLanes<T>) {
        add_queries(problem, line, query, keys, key_step, queries, logits, bias, sums);
      }
      if (problem.distance) {
        const T patches = static_cast<T>(problem.rows * problem.columns);
        static_cast<T*>(problem.distance)[unit] = add_lanes<T>(sums.distance) / patches;
      }
      if (problem.entropy) {
        const T count = static_cast<T>(tokens ? tokens : 1);
        static_cast<T*>(problem.entropy)[unit] = add_lanes<T>(sums.entropy) / count;
      }
    }
  }

  struct Sums {
    Vector<T> distance, entropy;
  };

  // One vector of queries against all keys.
  static void add_queries(const AttentionTapsProblem& problem, const Line<S>& line, int64_t query,
                          const E* keys, int64_t key_step, E* queries, T* logits, T* packed_bias,
                          Sums& sums) {
    constexpr int64_t kColumns = kLanes<T>;
    const int64_t prefix = line.tokens - problem.rows * problem.columns;
    const int64_t count = line.tokens - query < kColumns ? line.tokens - query : kColumns;
    pack_queries(static_cast<const S*>(problem.qkv) + line.offset + query * line.step, line, count,
                 problem.scale, queries, kColumns);
    const LineBias<T> bias(problem.bias, line.batch, line.line, line.head);
    const T* kept =
        static_cast<const T*>(problem.statistics) + 2 * line.first_query(problem.shape) + query;
    const Vector<T> largest = load_first(kept, count);
    const Vector<T> log2_total = load_first(kept + line.tokens, count);

    // 1 for a query that has keys, 0 for one without; 1 for a query on the grid; its row and
    // column.
    Vector<T> counts = {}, on_grid = {}, row = {}, column = {};
    for (int64_t i = 0; i < count; ++i) {
      if (log2_total[i] == static_cast<T>(__builtin_inf())) continue;
      counts[i] = 1;
      if (problem.distance && query + i >= prefix) {
        on_grid[i] = 1;
        row[i] = static_cast<T>((query + i - prefix) / problem.columns);
        column[i] = static_cast<T>((query + i - prefix) % problem.columns);
      }
    }

    const Blocking key_blocks(line.tokens, kMaxKeys<T>);
    for (int64_t i = 0; i < key_blocks.count; ++i) {
      const int64_t key = key_blocks.begin(i), rows = key_blocks.size(i);
      Integers<T> open[1] = {};  // not read: `counts` comes from the statistics of forward
      const T factor = compute_logits<E, 1>(line, problem.scale, bias, keys, key_step, queries, key,
                                            rows, query, logits, packed_bias, open);
      for (int64_t j = 0; j < rows; ++j) {
        const Vector<T> exponent = (load(logits + j * kColumns) - largest) * factor - log2_total;
        const Vector<T> p = counts == T(0) ? Vector<T>{} : exp2(exponent);
        if (problem.class_row && query == 0) {
          static_cast<T*>(problem.class_row)[line.first_query(problem.shape) + key + j] = p[0];
        }
        // 0 log(0) counts as 0; the entropy is in nats.
        const Vector<T> term = p * exponent * static_cast<T>(-kLn2);
        sums.entropy += p == T(0) ? Vector<T>{} : term;
        if (problem.distance && key + j >= prefix) {
          const int64_t place = key + j - prefix;
          const Vector<T> down = row - static_cast<T>(place / problem.columns);
          const Vector<T> across = column - static_cast<T>(place % problem.columns);
          const Vector<T> distance = square_root(down * down + across * across);
          sums.distance += on_grid == T(0) ? Vector<T>{} : p * distance;
        }
      }
    }
  }

  static Vector<T> square_root(Vector<T> x) {
    for (int i = 0; i < kLanes<T>; ++i) {
      x[i] = static_cast<T>(__builtin_sqrt(static_cast<double>(x[i])));
    }
    return x;
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_TAPS_H_
