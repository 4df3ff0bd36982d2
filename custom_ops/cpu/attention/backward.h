// The gradients of q, k and v: see logit_gradients.h.
#ifndef CUSTOM_OPS_CPU_ATTENTION_BACKWARD_H_
#define CUSTOM_OPS_CPU_ATTENTION_BACKWARD_H_

#include "custom_ops/cpu/attention/attention_kernels.h"
#include "custom_ops/cpu/attention/logit_gradients.h"

namespace vit {
namespace VIT_ISA {

// The most memory for the sums of groups.
constexpr int64_t kMostGroupBytes = 64 * 1024 * 1024;

// The sums over queries of the gradients of keys and values: each [tokens, size rounded up to whole
// vectors], not scaled.
template <class T>
struct KeySums {
  int64_t padded;
  T *d_keys, *d_values;

  static int64_t bytes(const AttentionShape& shape) {
    return 2 * Scratch::bytes<T>(shape.tokens * round_up(shape.head_size, kLanes<T>));
  }
  KeySums(int64_t padded, T* d_keys, T* d_values)
      : padded(padded), d_keys(d_keys), d_values(d_values) {}
  KeySums(const AttentionShape& shape, Scratch& scratch)
      : padded(round_up(shape.head_size, kLanes<T>)) {
    d_keys = scratch.take<T>(shape.tokens * padded);
    d_values = scratch.take<T>(shape.tokens * padded);
  }
  // Those of a group, in group_sums.
  static KeySums of_group(const AttentionShape& shape, void* group_sums, int64_t group) {
    Scratch memory(static_cast<char*>(group_sums) + group * bytes(shape));
    return KeySums(shape, memory);
  }
};

// A unit is a group of queries of a line of one head. With several groups, each writes its KeySums
// to group_sums, and AttentionKeyGradients adds them. S and E: see AttentionForward.
template <class S, class E = Accumulator<S>>
struct AttentionBackward {
  using T = Accumulator<S>;
  static constexpr int64_t kPack = kPackSize<E>;

  static QueryBlocks<T> blocks_of(const AttentionGradientProblem& problem) {
    const int64_t bytes = lines_of(problem.shape) * KeySums<T>::bytes(problem.shape);
    const int64_t most = bytes ? kMostGroupBytes / bytes : 1;
    return QueryBlocks<T>(problem.shape, most < 1 ? 1 : most);
  }

  static int64_t units(const AttentionGroupedProblem& problem) {
    return lines_of(problem.shape) * blocks_of(problem).groups.count;
  }

  static double unit_cycles(const AttentionGroupedProblem& problem) {
    return line_cycles(problem.shape, 5) / static_cast<double>(blocks_of(problem).group_count());
  }

  static int64_t group_bytes(const AttentionGradientProblem& problem) {
    const int64_t groups = blocks_of(problem).group_count();
    return groups == 1 ? 0 : lines_of(problem.shape) * groups * KeySums<T>::bytes(problem.shape);
  }

  static int64_t scratch_bytes(const AttentionGroupedProblem& problem) {
    const int64_t padded = round_up(problem.shape.head_size, kLanes<T>);
    return LogitGradients<S, E>::scratch_bytes(problem) +
           (problem.group_sums ? 0 : KeySums<T>::bytes(problem.shape)) +
           2 * Scratch::bytes<T>(kMaxQueries<T> * padded) +
           Scratch::bytes<T>(problem.shape.head_size * kMaxQueries<T>) +
           (kPack > 1 ? Scratch::bytes<T>(problem.shape.tokens * problem.shape.head_size) : 0);
  }

  static void run(const AttentionGroupedProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    const QueryBlocks<T> blocks = blocks_of(problem);
    const int64_t groups = blocks.groups.count;
    const int64_t size = problem.shape.head_size, tokens = problem.shape.tokens;
    const int64_t padded = round_up(size, kLanes<T>);
    Scratch scratch(memory);
    LogitGradients<S, E> gradients(problem, scratch);
    Sums sums;
    sums.padded = padded;
    sums.queries = scratch.take<E>(kMaxQueries<T> * padded);
    sums.d_out = scratch.take<E>(kMaxQueries<T> * padded);
    sums.d_queries = scratch.take<T>(size * kMaxQueries<T>);
    E* const key_pairs = kPack > 1 ? scratch.take<E>(tokens * size) : nullptr;

    KeySums<T> own = {padded, nullptr, nullptr};
    if (!problem.group_sums) own = KeySums<T>(problem.shape, scratch);
    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const Line<S> line(problem.shape, unit / groups);
      const S* k = static_cast<const S*>(problem.qkv) + line.offset + line.width;
      if (packed != unit / groups) {
        gradients.pack_line(problem, line);
        sums.keys = gradients.keys;
        sums.key_step = gradients.key_step;
        if constexpr (kPack > 1) {
          pack_right(k, line.step, tokens, size, key_pairs, size);
          sums.keys = key_pairs;
          sums.key_step = size;
        }
        packed = unit / groups;
      }
      const int64_t group = unit % groups;
      const KeySums<T> to =
          problem.group_sums ? KeySums<T>::of_group(problem.shape, problem.group_sums, unit) : own;
      sums.d_keys = to.d_keys;
      sums.d_values = to.d_values;
      const int64_t first = blocks.groups.begin(group), count = blocks.groups.size(group);
      gradients.prefetcher = Prefetcher();
      const int64_t next = unit / groups + 1;
      if (group == groups - 1 && next * groups < end) {
        gradients.prefetcher = prefetcher_of(problem, Line<S>(problem.shape, next));
      }
      gradients.prefetch_interval = ceil_divide(count, kPack);
      sums.first_query = blocks.vectors.begin(first) * kLanes<T>;
      for (int64_t i = first; i < first + count; ++i) {
        const int64_t query = blocks.vectors.begin(i) * kLanes<T>;
        with_vectors(blocks.vectors.size(i), [&](auto known) {
          run_block<known.count>(problem, line, query, gradients, sums);
        });
      }
      if (!problem.group_sums) write_key_gradients(problem, line, to, 0, tokens);
    }
  }

  static Prefetcher prefetcher_of(const AttentionGradientProblem& problem, const Line<S>& line) {
    Prefetcher prefetcher(line);
    for (int part = 0; part < 3; ++part) {
      const int64_t at = line.offset + part * line.width;
      prefetcher.read(static_cast<const S*>(problem.qkv) + at, line.step);
      prefetcher.write(static_cast<S*>(problem.gradient) + at, line.step);
    }
    prefetcher.read(static_cast<const S*>(problem.out) + line.out_offset, line.out_step);
    prefetcher.read(static_cast<const S*>(problem.d_out) + line.out_offset, line.out_step);
    return prefetcher;
  }

  struct Sums {
    int64_t padded;           // size, rounded up to whole vectors
    T *d_keys, *d_values;     // [tokens, padded], sums from first_query on
    int64_t first_query;
    E *queries, *d_out;       // [queries / kPack, padded]
    T* d_queries;             // [size, columns]
    const E* keys;            // [tokens / kPack, size], rows key_step elements apart
    int64_t key_step;
  };

  template <int kVectors>
  static void run_block(const AttentionGradientProblem& problem, const Line<S>& line, int64_t query,
                        LogitGradients<S, E>& gradients, const Sums& sums) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    const int64_t size = line.size;
    const int64_t queries = line.tokens - query < kColumns ? line.tokens - query : kColumns;
    const auto per_query = gradients.template pack_queries<kVectors>(problem, line, query, queries);
    pack_right(static_cast<const S*>(problem.qkv) + line.offset + query * line.step, line.step,
               queries, size, sums.queries, sums.padded);
    pack_right(static_cast<const S*>(problem.d_out) + line.out_offset + query * line.out_step,
               line.out_step, queries, size, sums.d_out, sums.padded);
    // Skips queries without keys, so that 0 * Inf is not added.
    for (int64_t i = 0; i < queries; ++i) {
      if (per_query.all_open[i / kLanes<T>] || per_query.is_open(i)) continue;
      clear_right(sums.queries, sums.padded, i);
      clear_right(sums.d_out, sums.padded, i);
    }

    const Blocking key_blocks(ceil_divide(line.tokens, kPack), kMaxKeys<T> / kPack);
    const Blocking columns(sums.padded / kLanes<T>, kMaxVectors);
    const int64_t depth = ceil_divide(queries, kPack);
    for (int64_t i = 0; i < key_blocks.count; ++i) {
      const int64_t key = key_blocks.begin(i) * kPack;
      const int64_t rest = line.tokens - key, most = key_blocks.size(i) * kPack;
      const int64_t keys = rest < most ? rest : most;
      gradients.template block<kVectors>(problem, line, query, key, keys, per_query);
      for (int64_t c = 0; c < columns.count; ++c) {
        const int64_t column = columns.begin(c) * kLanes<T>;
        const int count = static_cast<int>(columns.size(c));
        const int64_t at = key * sums.padded + column;
        multiply<E>(keys, count, depth, gradients.weight_rows, kColumns / kPack, 1,
                    sums.d_out + column, sums.padded, sums.d_values + at, sums.padded,
                    query > sums.first_query);
        multiply<E>(keys, count, depth, gradients.d_rows, kColumns / kPack, 1,
                    sums.queries + column, sums.padded, sums.d_keys + at, sums.padded,
                    query > sums.first_query);
      }
      multiply<E>(size, kVectors, key_blocks.size(i), sums.keys + key / kPack * sums.key_step, 1,
                  sums.key_step, gradients.d_right, kColumns, sums.d_queries, kColumns, i > 0);
    }
    Vector<T> scales[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      scales[v] = broadcast<T>(static_cast<T>(problem.scale));
      if (per_query.all_open[v]) continue;
      clear_columns<T>(sums.d_queries + v * kLanes<T>, kColumns, size, per_query.open[v]);
    }
    unpack_columns(sums.d_queries, kColumns, scales,
                   static_cast<S*>(problem.gradient) + line.offset + query * line.step, line.step,
                   queries, size);
  }

  // Writes the gradients of k and v of `count` tokens, starting at `first`.
  static void write_key_gradients(const AttentionGradientProblem& problem, const Line<S>& line,
                                  const KeySums<T>& sums, int64_t first, int64_t count) {
    const int64_t from = first * sums.padded, width = line.width;
    S* d_q = static_cast<S*>(problem.gradient) + line.offset + first * line.step;
    const T scale = static_cast<T>(problem.scale);
    write_rows(sums.d_keys + from, sums.padded, scale, d_q + width, line.step, count, line.size);
    write_rows(sums.d_values + from, sums.padded, 1, d_q + 2 * width, line.step, count, line.size);
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

// Adds the KeySums of the groups of a line and writes the gradients of k and v. A unit is a block
// of tokens of a line of one head.
template <class S, class E>
struct AttentionKeyGradients {
  using T = Accumulator<S>;
  static constexpr int64_t kTokens = 64;

  static int64_t groups_of(const AttentionGroupedProblem& problem) {
    return AttentionBackward<S, E>::blocks_of(problem).groups.count;
  }

  static Blocking tokens_of(const AttentionGroupedProblem& problem) {
    return Blocking(problem.shape.tokens, kTokens);
  }

  static int64_t units(const AttentionGroupedProblem& problem) {
    return lines_of(problem.shape) * tokens_of(problem).count;
  }

  static double unit_cycles(const AttentionGroupedProblem& problem) {
    const int64_t bytes = groups_of(problem) * KeySums<T>::bytes(problem.shape);
    return static_cast<double>(bytes / tokens_of(problem).count) / 16 + 100;
  }

  static int64_t scratch_bytes(const AttentionGroupedProblem&) { return 0; }

  static void run(const AttentionGroupedProblem& problem, int64_t begin, int64_t end, void*) {
    const int64_t groups = groups_of(problem);
    const Blocking tokens = tokens_of(problem);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t line = unit / tokens.count;
      const int64_t first = tokens.begin(unit % tokens.count);
      const int64_t count = tokens.size(unit % tokens.count);
      const auto sums = [&](int64_t group) {
        return KeySums<T>::of_group(problem.shape, problem.group_sums, line * groups + group);
      };
      const KeySums<T> total = sums(0);
      for (int64_t group = 1; group < groups; ++group) {
        const KeySums<T> added = sums(group);
        for (int64_t i = first * total.padded; i < (first + count) * total.padded; i += kLanes<T>) {
          store<T>(total.d_keys + i, load(total.d_keys + i) + load(added.d_keys + i));
          store<T>(total.d_values + i, load(total.d_values + i) + load(added.d_values + i));
        }
      }
      AttentionBackward<S, E>::write_key_gradients(problem, Line<S>(problem.shape, line), total,
                                                   first, count);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_BACKWARD_H_
