// Gradients of attention: logits are computed again, block by block, as in forward. The weights p
// follow from the logits and the stored statistics, which are the largest logit and the sum of
// exp(logit - largest). With do = d_out and delta = sum(do * out) of a query:
//   dv = p^T do,   ds = p * (do v^T - delta),   dq = ds k * scale,   dk = ds^T q * scale
// and ds is the gradient of the bias (Dao et al., 2022, appendix B.4).
#ifndef CUSTOM_OPS_CPU_ATTENTION_LOGIT_GRADIENTS_H_
#define CUSTOM_OPS_CPU_ATTENTION_LOGIT_GRADIENTS_H_

#include "custom_ops/cpu/attention/logits.h"
#include "custom_ops/cpu/scratch.h"
#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

// The operands of a block of queries for backward and for the gradient of the bias, and the
// computation of p and ds. S and E: see AttentionForward.
template <class S, class E = Accumulator<S>>
struct LogitGradients {
  using T = Accumulator<S>;
  static constexpr int64_t kPack = kPackSize<E>;

  const E *keys, *values;      // [tokens, size / kPack], all keys of the line
  int64_t key_step, value_step;
  E *queries, *d_out, *out;    // [size / kPack, columns], transposed
  T *weights, *d_logits;       // p and ds, [keys, columns]
  T* bias;                     // [keys, columns], or null
  // The same as elements: rows [keys, columns / kPack], and ds as [keys / kPack, columns].
  E *weight_rows, *d_rows, *d_right;
  Prefetcher prefetcher;
  int64_t prefetch_interval;   // rows of logits per prefetched token

  static int64_t scratch_bytes(const AttentionGradientProblem& problem) {
    const int64_t size = problem.shape.head_size;
    return 2 * Scratch::bytes<T>(problem.shape.tokens * size) +
           3 * Scratch::bytes<T>(size * kMaxQueries<T>) +
           Scratch::bytes<T>(kMaxKeys<T> * kMaxQueries<T>) *
               ((problem.bias.data ? 3 : 2) + (kPack > 1 ? 2 : 0));
  }

  LogitGradients(const AttentionGradientProblem& problem, Scratch& scratch) {
    const int64_t size = problem.shape.head_size, block = kMaxKeys<T> * kMaxQueries<T>;
    key_rows_ = scratch.take<E>(problem.shape.tokens * size);
    value_rows_ = scratch.take<E>(problem.shape.tokens * size);
    queries = scratch.take<E>(size * kMaxQueries<T>);
    d_out = scratch.take<E>(size * kMaxQueries<T>);
    out = scratch.take<E>(size * kMaxQueries<T>);
    weights = scratch.take<T>(block);
    d_logits = scratch.take<T>(block);
    bias = problem.bias.data ? scratch.take<T>(block) : nullptr;
    if constexpr (kPack == 1) {
      weight_rows = weights;
      d_rows = d_right = d_logits;
    } else {
      weight_rows = scratch.take<E>(block / kPack);
      d_rows = scratch.take<E>(block / kPack);
      d_right = scratch.take<E>(block / kPack);
    }
    prefetch_interval = 1;
  }

  void pack_line(const AttentionGradientProblem& problem, const Line<S>& line) {
    const S* qkv = static_cast<const S*>(problem.qkv) + line.offset;
    keys = rows_of(qkv + line.width, line, key_rows_, key_step);
    values = rows_of(qkv + 2 * line.width, line, value_rows_, value_step);
  }

  // The statistics and delta of every query. A column is open if it holds a query that has keys. In
  // other columns p and ds are set to 0, whatever was computed there.
  template <int kVectors>
  struct PerQuery {
    Vector<T> largest[kVectors], log2_total[kVectors], delta[kVectors];
    Integers<T> open[kVectors];
    bool all_open[kVectors];
    bool is_open(int64_t i) const { return open[i / kLanes<T>][i % kLanes<T>]; }
  };

  template <int kVectors>
  VIT_NOINLINE PerQuery<kVectors> pack_queries(const AttentionGradientProblem& problem,
                                               const Line<S>& line, int64_t query,
                                               int64_t count) const {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    constexpr T kInfinity = static_cast<T>(__builtin_inf());
    const int64_t at = line.out_offset + query * line.out_step;
    vit::VIT_ISA::pack_queries(static_cast<const S*>(problem.qkv) + line.offset + query * line.step,
                               line, count, problem.scale, queries, kColumns);
    pack_elements<E>(static_cast<const S*>(problem.d_out) + at, line.out_step, count, line.size,
                     d_out, kColumns);
    pack_elements<E>(static_cast<const S*>(problem.out) + at, line.out_step, count, line.size, out,
                     kColumns);
    const T* kept =
        static_cast<const T*>(problem.statistics) + 2 * line.first_query(problem.shape) + query;
    T largest[kColumns], log2_total[kColumns];
    PerQuery<kVectors> result;
    for (int v = 0; v < kVectors; ++v) result.all_open[v] = true;
    for (int64_t i = 0; i < kColumns; ++i) {
      largest[i] = i < count ? kept[i] : T(0);
      log2_total[i] = i < count ? kept[line.tokens + i] : kInfinity;
      if (log2_total[i] == kInfinity) result.all_open[i / kLanes<T>] = false;
    }
    add_products<kVectors>(line.size / kPack, result.delta);
    for (int v = 0; v < kVectors; ++v) {
      const Vector<T> zero = {}, total = load<T>(log2_total + v * kLanes<T>);
      result.open[v] = total != kInfinity;
      result.largest[v] = load<T>(largest + v * kLanes<T>);
      result.log2_total[v] = result.open[v] ? total : zero;
      result.delta[v] = result.open[v] ? result.delta[v] : zero;
    }
    return result;
  }

  // sums[v] = the products of the columns of d_out with the columns of out. They are added in the
  // same order as the products with v, so that ds is exactly 0 for a query with a single key.
  template <int kVectors>
  void add_products(int64_t depth, Vector<T> (&sums)[kVectors]) const {
    for (int v = 0; v < kVectors; ++v) sums[v] = Vector<T>{};
    for (int64_t j = 0; j < depth;) {
      const int64_t end = depth - j < kMaxRun ? depth : j + kMaxRun;
      Vector<T> run[kVectors] = {};
      for (; j < end; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const int64_t place = (j * kVectors + v) * kLanes<T>;
          run[v] = Product<E>::add(run[v], Product<E>::load_lanes(out + place),
                                   Product<E>::load_lanes(d_out + place));
        }
      }
      for (int v = 0; v < kVectors; ++v) sums[v] += run[v];
    }
  }

  // Computes p and ds of `count` keys, starting at `key`: as numbers, or as pairs for the products
  // of AttentionBackward.
  template <int kVectors, bool kUnpacked = kPack == 1>
  VIT_NOINLINE void block(const AttentionGradientProblem& problem, const Line<S>& line,
                          int64_t query, int64_t key, int64_t count,
                          const PerQuery<kVectors>& per_query) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    constexpr int64_t kStep = kUnpacked ? 1 : kPack;
    const Vector<T> lowest = broadcast<T>(-static_cast<T>(__builtin_inf()));
    const LineBias<T> line_bias(problem.bias, line.batch, line.line, line.head);
    Integers<T> open[kVectors] = {};  // not read: forward's statistics set per_query.open
    const T factor = compute_logits<E, kVectors>(line, problem.scale, line_bias, keys, key_step,
                                                 queries, key, count, query, weights, bias, open);
    multiply<E>(count, kVectors, line.size / kPack, values + key * value_step, value_step, 1, d_out,
                kColumns, d_logits, kColumns, false);
    for (int v = 0; v < kVectors; ++v) {
      if (per_query.all_open[v]) continue;
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = j * kColumns + v * kLanes<T>;
        store<T>(weights + at, per_query.open[v] ? load(weights + at) : lowest);
        store<T>(d_logits + at, per_query.open[v] ? load(d_logits + at) : Vector<T>{});
      }
    }
    if (count % kStep) {  // the last pair holds only one key
      for (int v = 0; v < kVectors; ++v) {
        store<T>(weights + count * kColumns + v * kLanes<T>, lowest);
        store<T>(d_logits + count * kColumns + v * kLanes<T>, Vector<T>{});
      }
    }
    for (int64_t j = 0, countdown = 0; j < count; j += kStep) {
      if (--countdown < 0) {
        prefetcher.prefetch_token();
        countdown = prefetch_interval - 1;
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = j * kColumns + v * kLanes<T>;
        const auto& largest = per_query.largest[v];
        const auto& log2_total = per_query.log2_total[v];
        const auto& delta = per_query.delta[v];
        const Vector<T> p = exp2((load(weights + at) - largest) * factor - log2_total);
        const Vector<T> d = p * (load(d_logits + at) - delta);
        if constexpr (kUnpacked) {
          store<T>(weights + at, p);
          store<T>(d_logits + at, d);
        } else {
          const int64_t next = at + kColumns;
          const Vector<T> p_next = exp2((load(weights + next) - largest) * factor - log2_total);
          const Vector<T> d_next = p_next * (load(d_logits + next) - delta);
          store_rounded(&weight_rows[0].first + at, p);
          store_rounded(&weight_rows[0].first + next, p_next);
          store_rounded(&d_rows[0].first + at, d);
          store_rounded(&d_rows[0].first + next, d_next);
          store_pairs(d_right + j / kPack * kColumns + v * kLanes<T>, d, d_next);
        }
      }
    }
  }

 private:
  E *key_rows_, *value_rows_;
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_LOGIT_GRADIENTS_H_
