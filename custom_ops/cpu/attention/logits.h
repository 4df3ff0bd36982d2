// Logits, block by block, with the same code in forward, gradients and taps.
//
// Queries lie in the lanes of vectors and keys in rows: logits are blocks [keys, queries]. So
// maxima and sums over keys need no operation across lanes, k and v are read one number at a time,
// and any number of keys is computed without padding.
#ifndef CUSTOM_OPS_CPU_ATTENTION_LOGITS_H_
#define CUSTOM_OPS_CPU_ATTENTION_LOGITS_H_

#include "custom_ops/cpu/attention/line.h"
#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/tile.h"

namespace vit {
namespace VIT_ISA {

constexpr double kLog2E = 1.44269504088896340736;
constexpr double kLn2 = 0.693147180559945309417;

// Maximum bytes of a block [keys, queries] of logits: 128 keys for 64 queries in float, which was 2
// to 4 % faster than 96 keys (one thread of a Zen 5). It is small because a block is written and
// then read at once.
constexpr int64_t kLogitsBytes = 32 * 1024;

// Maximum queries of a block.
template <class T>
constexpr int64_t kMaxQueries = kMaxVectors * kLanes<T>;
// Maximum keys of a block.
template <class T>
constexpr int64_t kMaxKeys = kLogitsBytes / (kMaxQueries<T> * static_cast<int64_t>(sizeof(T)));

// The bias of one line of one head.
template <class T>
struct LineBias {
  const T* data;  // the element of query 0 and key 0, or null without a bias
  int64_t query_stride, key_stride;

  LineBias(const AttentionBias& bias, int64_t batch, int64_t line, int64_t head)
      : data(static_cast<const T*>(bias.data)),
        query_stride(bias.query_stride),
        key_stride(bias.key_stride) {
    if (data) {
      data += batch * bias.batch_stride + line * bias.line_stride + head * bias.head_stride;
    }
  }

  // Packs the block of `keys` x `queries` elements at (key, query) as [keys, columns]. Columns
  // beyond `queries` hold arbitrary numbers.
  void pack(int64_t key, int64_t keys, int64_t query, int64_t queries, T* to,
            int64_t columns) const {
    const T* from = data + query * query_stride + key * key_stride;
    if (query_stride == 0) {
      for (int64_t j = 0; j < keys; ++j) {
        const Vector<T> x = broadcast<T>(from[j * key_stride]);
        for (int64_t i = 0; i < columns; i += kLanes<T>) store<T>(to + j * columns + i, x);
      }
      return;
    }
    if (key_stride == 1) {
      pack_columns<T>(from, query_stride, queries, keys, to, columns);
      return;
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t i = 0; i < columns; ++i) {
        to[j * columns + i] = i < queries ? from[i * query_stride + j * key_stride] : T(0);
      }
    }
  }
};

// logits [keys, columns] = k q^T * scale + bias. Sets `open` in the columns that have a bias other
// than -inf.
template <class T, int kVectors>
VIT_INLINE void add_bias(T* logits, const T* bias, int64_t keys, T scale,
                         Integers<T> (&open)[kVectors]) {
  const Vector<T> closed = broadcast<T>(-static_cast<T>(__builtin_inf()));
  const Vector<T> scales = broadcast<T>(scale);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = (j * kVectors + v) * kLanes<T>;
      const Vector<T> added = load(bias + at);
      open[v] |= added != closed;
      store<T>(logits + at, multiply_add<T>(load(logits + at), scales, added));
    }
  }
}

// Packs rows of queries as columns of elements, multiplied by query_factor(scale).
template <class E, class S>
static void pack_queries(const S* from, const Line<S>& line, int64_t queries, double scale, E* to,
                         int64_t columns) {
  using T = Accumulator<E>;
  pack_elements<E>(from, line.step, queries, line.size, to, columns);
  const T factor = static_cast<T>(query_factor(scale));
  const int64_t count = line.size / kPackSize<E> * columns;
  for (int64_t i = 0; factor != T(1) && i < count; i += kLanes<T>) {
    if constexpr (kPackSize<E> == 1) {
      store<T>(to + i, load(to + i) * factor);
    } else {
      scale_pairs(to + i, factor);
    }
  }
}

// Computes the logits of `count` keys, starting at `key`, and of the queries from pack_queries,
// starting at `query`: [keys, columns]. Without a bias they stay products k q^T * query_factor,
// with a bias they are k q^T * scale + bias. Returns the factor that converts their differences to
// units of log2: exp(logit - largest) is exp2((x - largest x) * factor), whose rounding error does
// not grow with the logits. Gradients and taps call this function as forward does, so that they get
// the same bits. `open`: see add_bias.
template <class E, int kVectors, class S, class T = Accumulator<S>>
static T compute_logits(const Line<S>& line, double scale, const LineBias<T>& bias, const E* keys,
                        int64_t key_step, const E* queries, int64_t key, int64_t count,
                        int64_t query, T* logits, T* packed_bias, Integers<T> (&open)[kVectors]) {
  constexpr int64_t kColumns = kVectors * kLanes<T>;
  multiply<E>(count, kVectors, line.size / kPackSize<E>, keys + key * key_step, key_step, 1,
              queries, kColumns, logits, kColumns, false);
  const double left_of_scale = scale / query_factor(scale);
  if (!bias.data) return static_cast<T>(kLog2E * left_of_scale);
  const int64_t left = line.tokens - query;
  bias.pack(key, count, query, left < kColumns ? left : kColumns, packed_bias, kColumns);
  add_bias<T, kVectors>(logits, packed_bias, count, static_cast<T>(left_of_scale), open);
  return static_cast<T>(kLog2E);
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_LOGITS_H_
