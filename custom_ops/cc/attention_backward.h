// Gradients of attention: the logits are computed again, block by block, as forward has computed
// them, and the weights p from them and the kept statistics, the largest logit and the sum of
// exp(logit - largest). With do = d_out and delta = sum(do * out) of a query:
//   dv = p^T do,   ds = p * (do v^T - delta),   dq = ds k * scale,   dk = ds^T q * scale
// and ds is the gradient of the bias (Dao et al., 2022, appendix B.4).
#ifndef CUSTOM_OPS_CC_ATTENTION_BACKWARD_H_
#define CUSTOM_OPS_CC_ATTENTION_BACKWARD_H_

#include "custom_ops/cc/attention_forward.h"

namespace vit {
namespace VIT_ISA {

// What backward and the gradient of the bias need of a block of queries, and how they get p and ds.
// S and E: see Forward.
template <class S, class E = Accumulator<S>>
struct Gradients {
  using T = Accumulator<S>;
  static constexpr int64_t kPer = kNumbersIn<E>;

  const E *keys, *values;      // [tokens, size / kPer], of the whole line
  int64_t key_step, value_step;
  E *queries, *d_out, *out;    // [size / kPer, columns], transposed
  T *weights, *d_logits;       // p and ds, [keys, columns]
  T* bias;                     // [keys, columns], or null
  // The same as elements: rows [keys, columns / kPer], and ds as [keys / kPer, columns].
  E *weight_rows, *d_rows, *d_right;
  Ahead ahead;
  int64_t ask_every;           // rows of logits between two askings, so that they last for the line

  static int64_t scratch_bytes(const AttentionCall& call) {
    const int64_t size = call.shape.head_size;
    return 2 * Scratch::bytes<T>(call.shape.tokens * size) +
           3 * Scratch::bytes<T>(size * kMaxQueries<T>) +
           Scratch::bytes<T>(kMaxKeys<T> * kMaxQueries<T>) *
               ((call.bias.data ? 3 : 2) + (kPer > 1 ? 2 : 0));
  }

  Gradients(const AttentionCall& call, Scratch& scratch) {
    const int64_t size = call.shape.head_size, block = kMaxKeys<T> * kMaxQueries<T>;
    key_rows_ = scratch.take<E>(call.shape.tokens * size);
    value_rows_ = scratch.take<E>(call.shape.tokens * size);
    queries = scratch.take<E>(size * kMaxQueries<T>);
    d_out = scratch.take<E>(size * kMaxQueries<T>);
    out = scratch.take<E>(size * kMaxQueries<T>);
    weights = scratch.take<T>(block);
    d_logits = scratch.take<T>(block);
    bias = call.bias.data ? scratch.take<T>(block) : nullptr;
    if constexpr (kPer == 1) {
      weight_rows = weights;
      d_rows = d_right = d_logits;
    } else {
      weight_rows = scratch.take<E>(block / kPer);
      d_rows = scratch.take<E>(block / kPer);
      d_right = scratch.take<E>(block / kPer);
    }
    ask_every = 1;
  }

  void pack_line(const AttentionCall& call, const Line<S>& line) {
    const S* qkv = static_cast<const S*>(call.qkv) + line.offset;
    keys = rows_of(qkv + line.width, line, key_rows_, key_step);
    values = rows_of(qkv + 2 * line.width, line, value_rows_, value_step);
  }

  // The statistics and delta of every query. Columns that are not open are those without a query
  // and those of queries without a key: p and ds are 0 there, whatever was computed.
  template <int kVectors>
  struct PerQuery {
    Vector<T> largest[kVectors], log2_total[kVectors], delta[kVectors];
    Integers<T> open[kVectors];
    bool all_open[kVectors];
    bool is_open(int64_t i) const { return open[i / kLanes<T>][i % kLanes<T>]; }
  };

  template <int kVectors>
  PerQuery<kVectors> pack_queries(const AttentionCall& call, const Line<S>& line, int64_t query,
                                  int64_t count) const {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    constexpr T kInfinity = static_cast<T>(__builtin_inf());
    const int64_t at = line.out_offset + query * line.out_step;
    pack_elements<E>(static_cast<const S*>(call.qkv) + line.offset + query * line.step, line.step,
                     count, line.size, queries, kColumns);
    pack_elements<E>(static_cast<const S*>(call.d_out) + at, line.out_step, count, line.size, d_out,
                     kColumns);
    pack_elements<E>(static_cast<const S*>(call.out) + at, line.out_step, count, line.size, out,
                     kColumns);
    const T* kept =
        static_cast<const T*>(call.statistics) + 2 * line.first_query(call.shape) + query;
    T largest[kColumns], log2_total[kColumns];
    PerQuery<kVectors> result;
    for (int v = 0; v < kVectors; ++v) result.all_open[v] = true;
    for (int64_t i = 0; i < kColumns; ++i) {
      largest[i] = i < count ? kept[i] : T(0);
      log2_total[i] = i < count ? kept[line.tokens + i] : kInfinity;
      if (log2_total[i] == kInfinity) result.all_open[i / kLanes<T>] = false;
    }
    add_products<kVectors>(line.size / kPer, result.delta);
    for (int v = 0; v < kVectors; ++v) {
      const Vector<T> zero = {}, total = load<T>(log2_total + v * kLanes<T>);
      result.open[v] = total != kInfinity;
      result.largest[v] = load<T>(largest + v * kLanes<T>);
      result.log2_total[v] = result.open[v] ? total : zero;
      result.delta[v] = result.open[v] ? result.delta[v] : zero;
    }
    return result;
  }

  // sums[v] = the products of the columns of d_out with those of out, added in the order of the
  // products with v: so ds is exactly 0 where a query has one key only.
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

  // p and ds for `count` keys from `key` on: as numbers, or as pairs for the products of Backward.
  template <int kVectors, bool kNumbers = kPer == 1>
  void block(const AttentionCall& call, const Line<S>& line, int64_t query, int64_t key,
             int64_t count, const PerQuery<kVectors>& per_query) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    constexpr int64_t kAtOnce = kNumbers ? 1 : kPer;
    const Vector<T> lowest = broadcast<T>(-static_cast<T>(__builtin_inf()));
    const LineBias<T> line_bias(call.bias, line.batch, line.line, line.head);
    Integers<T> open[kVectors] = {};  // forward knows better
    const T factor = compute_logits<E, kVectors>(line, call.scale, line_bias, keys, key_step,
                                                 queries, key, count, query, weights, bias, open);
    multiply<E>(count, kVectors, line.size / kPer, values + key * value_step, value_step, 1, d_out,
                kColumns, d_logits, kColumns, false);
    for (int v = 0; v < kVectors; ++v) {
      if (per_query.all_open[v]) continue;
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = j * kColumns + v * kLanes<T>;
        store<T>(weights + at, per_query.open[v] ? load(weights + at) : lowest);
        store<T>(d_logits + at, per_query.open[v] ? load(d_logits + at) : Vector<T>{});
      }
    }
    if (count % kAtOnce) {  // the last element is a pair of a key and of nothing
      for (int v = 0; v < kVectors; ++v) {
        store<T>(weights + count * kColumns + v * kLanes<T>, lowest);
        store<T>(d_logits + count * kColumns + v * kLanes<T>, Vector<T>{});
      }
    }
    for (int64_t j = 0, countdown = 0; j < count; j += kAtOnce) {
      if (--countdown < 0) {
        ahead.ask();
        countdown = ask_every - 1;
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = j * kColumns + v * kLanes<T>;
        const auto& largest = per_query.largest[v];
        const auto& log2_total = per_query.log2_total[v];
        const auto& delta = per_query.delta[v];
        const Vector<T> p = exp2((load(weights + at) - largest) * factor - log2_total);
        const Vector<T> d = p * (load(d_logits + at) - delta);
        if constexpr (kNumbers) {
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
          store_pairs(d_right + j / kPer * kColumns + v * kLanes<T>, d, d_next);
        }
      }
    }
  }

 private:
  E *key_rows_, *value_rows_;
};

template <class S, class E = Accumulator<S>>
struct Backward {
  using T = Accumulator<S>;
  static constexpr int64_t kPer = kNumbersIn<E>;

  static int64_t units(const AttentionCall& call) {
    return call.shape.tokens ? lines_of(call.shape) : 0;
  }

  static int64_t scratch_bytes(const AttentionCall& call) {
    const int64_t padded = round_up(call.shape.head_size, kLanes<T>);
    return Gradients<S, E>::scratch_bytes(call) +
           2 * Scratch::bytes<T>(call.shape.tokens * padded) +
           2 * Scratch::bytes<T>(kMaxQueries<T> * padded) +
           Scratch::bytes<T>(call.shape.head_size * kMaxQueries<T>) +
           (kPer > 1 ? Scratch::bytes<T>(call.shape.tokens * call.shape.head_size) : 0);
  }

  static void run(const AttentionCall& call, int64_t begin, int64_t end, void* memory) {
    const int64_t size = call.shape.head_size, tokens = call.shape.tokens;
    const int64_t padded = round_up(size, kLanes<T>);
    Scratch scratch(memory);
    Gradients<S, E> gradients(call, scratch);
    Sums sums;
    sums.padded = padded;
    sums.d_keys = scratch.take<T>(tokens * padded);
    sums.d_values = scratch.take<T>(tokens * padded);
    sums.queries = scratch.take<E>(kMaxQueries<T> * padded);
    sums.d_out = scratch.take<E>(kMaxQueries<T> * padded);
    sums.d_queries = scratch.take<T>(size * kMaxQueries<T>);
    E* const key_pairs = kPer > 1 ? scratch.take<E>(tokens * size) : nullptr;

    for (int64_t unit = begin; unit < end; ++unit) {
      const Line<S> line(call.shape, unit);
      const S* k = static_cast<const S*>(call.qkv) + line.offset + line.width;
      gradients.pack_line(call, line);
      sums.keys = gradients.keys;
      sums.key_step = gradients.key_step;
      if constexpr (kPer > 1) {
        pack_right(k, line.step, tokens, size, key_pairs, size);
        sums.keys = key_pairs;
        sums.key_step = size;
      }
      const Parts vectors(ceil_divide(tokens, kLanes<T>), kMaxVectors);
      gradients.ahead = unit + 1 < end ? ahead_of(call, Line<S>(call.shape, unit + 1)) : Ahead();
      gradients.ask_every = ceil_divide(vectors.count, kPer);
      for (int64_t i = 0; i < vectors.count; ++i) {
        const int64_t query = vectors.begin(i) * kLanes<T>;
        switch (vectors.size(i)) {
          case 1: run_block<1>(call, line, query, gradients, sums); break;
          case 2: run_block<2>(call, line, query, gradients, sums); break;
#if defined(__AVX512F__)
          case 3: run_block<3>(call, line, query, gradients, sums); break;
          case 4: run_block<4>(call, line, query, gradients, sums); break;
#endif
        }
      }
      S* d_qkv = static_cast<S*>(call.result) + line.offset;
      const T scale = static_cast<T>(call.scale);
      write_rows(sums.d_keys, padded, scale, d_qkv + line.width, line.step, tokens, size);
      write_rows(sums.d_values, padded, 1, d_qkv + 2 * line.width, line.step, tokens, size);
    }
  }

  static Ahead ahead_of(const AttentionCall& call, const Line<S>& line) {
    Ahead ahead(line);
    for (int part = 0; part < 3; ++part) {
      const int64_t at = line.offset + part * line.width;
      ahead.read(static_cast<const S*>(call.qkv) + at, line.step);
      ahead.write(static_cast<S*>(call.result) + at, line.step);
    }
    ahead.read(static_cast<const S*>(call.out) + line.out_offset, line.out_step);
    ahead.read(static_cast<const S*>(call.d_out) + line.out_offset, line.out_step);
    return ahead;
  }

  struct Sums {
    int64_t padded;           // size, rounded up to whole vectors
    T *d_keys, *d_values;     // [tokens, padded]
    E *queries, *d_out;       // [queries / kPer, padded]
    T* d_queries;             // [size, columns]
    const E* keys;            // [tokens / kPer, size], rows at this distance
    int64_t key_step;
  };

  template <int kVectors>
  static void run_block(const AttentionCall& call, const Line<S>& line, int64_t query,
                        Gradients<S, E>& gradients, const Sums& sums) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    const int64_t size = line.size;
    const int64_t queries = line.tokens - query < kColumns ? line.tokens - query : kColumns;
    const auto per_query = gradients.template pack_queries<kVectors>(call, line, query, queries);
    pack_right(static_cast<const S*>(call.qkv) + line.offset + query * line.step, line.step,
               queries, size, sums.queries, sums.padded);
    pack_right(static_cast<const S*>(call.d_out) + line.out_offset + query * line.out_step,
               line.out_step, queries, size, sums.d_out, sums.padded);
    // A query without a key has no part in anything, not even by 0 * Inf.
    for (int64_t i = 0; i < queries; ++i) {
      if (per_query.all_open[i / kLanes<T>] || per_query.is_open(i)) continue;
      clear_right(sums.queries, sums.padded, i);
      clear_right(sums.d_out, sums.padded, i);
    }

    const Parts parts(ceil_divide(line.tokens, kPer), kMaxKeys<T> / kPer);
    const Parts columns(sums.padded / kLanes<T>, kMaxVectors);
    const int64_t depth = ceil_divide(queries, kPer);
    for (int64_t i = 0; i < parts.count; ++i) {
      const int64_t key = parts.begin(i) * kPer;
      const int64_t rest = line.tokens - key, most = parts.size(i) * kPer;
      const int64_t keys = rest < most ? rest : most;
      gradients.template block<kVectors>(call, line, query, key, keys, per_query);
      for (int64_t c = 0; c < columns.count; ++c) {
        const int64_t column = columns.begin(c) * kLanes<T>;
        const int count = static_cast<int>(columns.size(c));
        const int64_t at = key * sums.padded + column;
        multiply<E>(keys, count, depth, gradients.weight_rows, kColumns / kPer, 1,
                    sums.d_out + column, sums.padded, sums.d_values + at, sums.padded, query > 0);
        multiply<E>(keys, count, depth, gradients.d_rows, kColumns / kPer, 1, sums.queries + column,
                    sums.padded, sums.d_keys + at, sums.padded, query > 0);
      }
      multiply<E>(size, kVectors, parts.size(i), sums.keys + key / kPer * sums.key_step, 1,
                  sums.key_step, gradients.d_right, kColumns, sums.d_queries, kColumns, i > 0);
    }
    Vector<T> scales[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      scales[v] = broadcast<T>(static_cast<T>(call.scale));
      if (per_query.all_open[v]) continue;
      clear_columns<T>(sums.d_queries + v * kLanes<T>, kColumns, size, per_query.open[v]);
    }
    unpack_columns(sums.d_queries, kColumns, scales,
                   static_cast<S*>(call.result) + line.offset + query * line.step, line.step,
                   queries, size);
  }

  static void write_rows(const T* from, int64_t padded, T factor, S* to, int64_t step, int64_t rows,
                         int64_t size) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < size; j += kLanes<T>) {
        store_first(to + i * step + j, load(from + i * padded + j) * factor, size - j);
      }
    }
  }
};

// A unit owns the elements of d_bias of one combination of batch, line and head that the bias
// distinguishes, for one block of queries (all of them, if the bias does not distinguish queries),
// and goes through everything that these elements were added to.
template <class S, class E = Accumulator<S>>
struct BiasGradient {
  using T = Accumulator<S>;

  static int64_t query_blocks(const AttentionCall& call) {
    return ceil_divide(ceil_divide(call.shape.tokens, kLanes<T>), kMaxVectors);
  }

  static int64_t units(const AttentionCall& call) {
    const AttentionBias& bias = call.bias;
    return (bias.batch_stride ? call.shape.batch : 1) * (bias.line_stride ? call.shape.lines : 1) *
           (bias.head_stride ? call.shape.heads : 1) * (bias.query_stride ? query_blocks(call) : 1);
  }

  static int64_t scratch_bytes(const AttentionCall& call) {
    return Gradients<S, E>::scratch_bytes(call);
  }

  static void run(const AttentionCall& call, int64_t begin, int64_t end, void* memory) {
    Scratch scratch(memory);
    Gradients<S, E> gradients(call, scratch);
    const AttentionShape& shape = call.shape;
    const AttentionBias& bias = call.bias;
    const int64_t blocks = query_blocks(call);
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t rest = unit;
      const auto own = [&rest](int64_t stride, int64_t count, int64_t& first, int64_t& last) {
        first = stride ? rest % count : 0;
        last = stride ? first + 1 : count;
        if (stride) rest /= count;
      };
      int64_t block, block_end, head, head_end, line, line_end, batch, batch_end;
      own(bias.query_stride, blocks, block, block_end);
      own(bias.head_stride, shape.heads, head, head_end);
      own(bias.line_stride, shape.lines, line, line_end);
      own(bias.batch_stride, shape.batch, batch, batch_end);
      T* result = static_cast<T*>(call.result) + batch * bias.batch_stride +
                  line * bias.line_stride + head * bias.head_stride;
      const Parts vectors(ceil_divide(shape.tokens, kLanes<T>), kMaxVectors);
      // Without tokens there are no blocks, of which `vectors` could say where they begin.
      clear(call, result, blocks ? vectors.begin(block) * kLanes<T> : 0,
            blocks ? vectors.begin(block_end) * kLanes<T> : 0);
      for (int64_t b = batch; b < batch_end; ++b) {
        for (int64_t l = line; l < line_end; ++l) {
          for (int64_t h = head; h < head_end; ++h) {
            const Line<S> at(shape, (b * shape.lines + l) * shape.heads + h);
            gradients.pack_line(call, at);
            for (int64_t i = block; i < block_end; ++i) {
              const int64_t query = vectors.begin(i) * kLanes<T>;
              switch (vectors.size(i)) {
                case 1: add_block<1>(call, at, query, gradients, result); break;
                case 2: add_block<2>(call, at, query, gradients, result); break;
#if defined(__AVX512F__)
                case 3: add_block<3>(call, at, query, gradients, result); break;
                case 4: add_block<4>(call, at, query, gradients, result); break;
#endif
              }
            }
          }
        }
      }
    }
  }

  static void clear(const AttentionCall& call, T* result, int64_t query, int64_t query_end) {
    const AttentionBias& bias = call.bias;
    const int64_t queries = query_end < call.shape.tokens ? query_end : call.shape.tokens;
    for (int64_t i = bias.query_stride ? query : 0; i < (bias.query_stride ? queries : 1); ++i) {
      for (int64_t j = 0; j < (bias.key_stride ? call.shape.tokens : 1); ++j) {
        result[i * bias.query_stride + j * bias.key_stride] = T(0);
      }
    }
  }

  template <int kVectors>
  static void add_block(const AttentionCall& call, const Line<S>& line, int64_t query,
                        Gradients<S, E>& gradients, T* result) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    const AttentionBias& bias = call.bias;
    const int64_t queries = line.tokens - query < kColumns ? line.tokens - query : kColumns;
    const auto per_query = gradients.template pack_queries<kVectors>(call, line, query, queries);
    const Parts parts(line.tokens, kMaxKeys<T>);
    for (int64_t i = 0; i < parts.count; ++i) {
      const int64_t key = parts.begin(i), keys = parts.size(i);
      gradients.template block<kVectors, true>(call, line, query, key, keys, per_query);
      T* at = result + query * bias.query_stride + key * bias.key_stride;
      // Where a row of the block goes to one element, it is added up before.
      T total = 0;
      T columns[kColumns] = {};
      for (int64_t j = 0; j < keys; ++j) {
        const T* row = gradients.d_logits + j * kColumns;
        if (bias.query_stride == 0) {
          T sum = 0;
          for (int64_t c = 0; c < queries; ++c) sum += row[c];
          if (bias.key_stride) {
            at[j * bias.key_stride] += sum;
          } else {
            total += sum;
          }
        } else if (bias.key_stride == 0) {
          for (int64_t c = 0; c < queries; ++c) columns[c] += row[c];
        } else {
          for (int64_t c = 0; c < queries; ++c) {
            at[c * bias.query_stride + j * bias.key_stride] += row[c];
          }
        }
      }
      if (bias.key_stride == 0) {
        if (bias.query_stride == 0) {
          *at += total;
        } else {
          for (int64_t c = 0; c < queries; ++c) at[c * bias.query_stride] += columns[c];
        }
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_BACKWARD_H_
