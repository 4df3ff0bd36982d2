// The gradient of the bias: see logit_gradients.h.
#ifndef CUSTOM_OPS_CPU_ATTENTION_BIAS_GRADIENT_H_
#define CUSTOM_OPS_CPU_ATTENTION_BIAS_GRADIENT_H_

#include "custom_ops/cpu/attention/attention_kernels.h"
#include "custom_ops/cpu/attention/logit_gradients.h"

namespace vit {
namespace VIT_ISA {

// How the gradient is split into units. The elements of d_bias of one batch element, line and head
// of the bias, for one block of queries (for all queries, if the bias has one row for all of them),
// are sums over all lines to which these elements were added. If these are few parts, the lines are
// split into groups, and a unit is a part of one group.
template <class T>
struct BiasUnits {
  // Along a dimension: the parts of the bias, and the lines that share an element.
  struct Dimension {
    int64_t parts, shared;
    Dimension(int64_t stride, int64_t count)
        : parts(stride ? count : 1), shared(stride ? 1 : count) {}
  };
  Dimension batch, lines, heads;
  int64_t blocks;   // of queries
  int64_t elements; // of the bias
  Blocking groups;  // of the lines that share an element

  // A unit has at least these cycles, unless it cannot be split.
  static constexpr double kFewCycles = 100'000;
  static constexpr int64_t kManyUnits = 64;

  explicit BiasUnits(const AttentionGradientProblem& problem)
      : batch(problem.bias.batch_stride, problem.shape.batch),
        lines(problem.bias.line_stride, problem.shape.lines),
        heads(problem.bias.head_stride, problem.shape.heads),
        blocks(problem.bias.query_stride ? query_blocks(problem.shape).count : 1),
        elements(batch.parts * lines.parts * heads.parts *
                 (problem.bias.query_stride ? problem.shape.tokens : 1) *
                 (problem.bias.key_stride ? problem.shape.tokens : 1)),
        groups(batch.shared * lines.shared * heads.shared, 1) {
    groups.count = 1;
    const double few = cycles(problem) / kFewCycles;
    while (groups.count * parts() < kManyUnits && groups.count + 1 <= few &&
           groups.count < groups.total) {
      ++groups.count;
    }
  }
  static Blocking query_blocks(const AttentionShape& shape) {
    return Blocking(ceil_divide(shape.tokens, kLanes<T>), kMaxVectors);
  }

  int64_t parts() const { return blocks * batch.parts * lines.parts * heads.parts; }

  // Of a part of one group.
  double cycles(const AttentionGradientProblem& problem) const {
    const double count = static_cast<double>(groups.total) / static_cast<double>(groups.count);
    return blocks ? line_cycles(problem.shape, 2) * count / static_cast<double>(blocks) : 0;
  }
};

// Adds the gradients of a block of logits, [keys, columns], to the elements of the bias from `at`
// on.
template <class T>
static VIT_NOINLINE void add_logits(const T* logits, int64_t columns, int64_t keys, int64_t queries,
                                    int64_t query_stride, int64_t key_stride, T* at) {
  if (query_stride && key_stride) {
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t c = 0; c < queries; ++c) {
        at[c * query_stride + j * key_stride] += logits[j * columns + c];
      }
    }
    return;
  }
  // Logits that have one element of the bias are summed before they are added.
  if (query_stride) {
    T sums[kMaxQueries<T>] = {};
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t c = 0; c < queries; ++c) sums[c] += logits[j * columns + c];
    }
    for (int64_t c = 0; c < queries; ++c) at[c * query_stride] += sums[c];
    return;
  }
  T total = 0;
  for (int64_t j = 0; j < keys; ++j) {
    T sum = 0;
    for (int64_t c = 0; c < queries; ++c) sum += logits[j * columns + c];
    if (key_stride) {
      at[j * key_stride] += sum;
    } else {
      total += sum;
    }
  }
  if (!key_stride) *at += total;
}

// Computes d_bias, or the sums of each group, [groups, elements]. S and E: see AttentionForward.
template <class S, class E = Accumulator<S>>
struct AttentionBiasGradient {
  using T = Accumulator<S>;

  static int64_t units(const AttentionGroupedProblem& problem) {
    const BiasUnits<T> units(problem);
    return units.parts() * units.groups.count;
  }

  static double unit_cycles(const AttentionGroupedProblem& problem) {
    return BiasUnits<T>(problem).cycles(problem);
  }

  static int64_t group_bytes(const AttentionGradientProblem& problem) {
    const BiasUnits<T> units(problem);
    if (units.groups.count <= 1) return 0;
    return units.groups.count * units.elements * static_cast<int64_t>(sizeof(T));
  }

  static int64_t scratch_bytes(const AttentionGroupedProblem& problem) {
    return LogitGradients<S, E>::scratch_bytes(problem);
  }

  static void run(const AttentionGroupedProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    Scratch scratch(memory);
    LogitGradients<S, E> gradients(problem, scratch);
    const AttentionShape& shape = problem.shape;
    const AttentionBias& bias = problem.bias;
    const BiasUnits<T> units(problem);
    const Blocking vectors = BiasUnits<T>::query_blocks(shape);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t group = unit / units.parts();
      int64_t rest = unit % units.parts();
      const auto next = [&rest](int64_t count) {
        const int64_t index = rest % count;
        rest /= count;
        return index;
      };
      const int64_t block = next(units.blocks), head = next(units.heads.parts);
      const int64_t line = next(units.lines.parts), batch = rest;
      // Without a row for each query, the only block has all queries.
      const int64_t first = bias.query_stride ? block : 0;
      const int64_t last = bias.query_stride ? block + 1 : vectors.count;
      T* const sums = problem.group_sums
                          ? static_cast<T*>(problem.group_sums) + group * units.elements
                          : static_cast<T*>(problem.gradient);
      T* const result =
          sums + batch * bias.batch_stride + line * bias.line_stride + head * bias.head_stride;
      clear(problem, result, vectors, first, last);
      const int64_t shared = units.groups.begin(group);
      for (int64_t i = shared; i < shared + units.groups.size(group); ++i) {
        const int64_t h = head + i % units.heads.shared;
        const int64_t l = line + i / units.heads.shared % units.lines.shared;
        const int64_t b = batch + i / units.heads.shared / units.lines.shared;
        const Line<S> at(shape, (b * shape.lines + l) * shape.heads + h);
        gradients.pack_line(problem, at);
        for (int64_t j = first; j < last; ++j) {
          const int64_t query = vectors.begin(j) * kLanes<T>;
          with_vectors(vectors.size(j), [&](auto known) {
            add_block<known.count>(problem, at, query, gradients, result);
          });
        }
      }
    }
  }

  // Sets the elements of the blocks [first, last) of queries to zero.
  static void clear(const AttentionGradientProblem& problem, T* result, const Blocking& vectors,
                    int64_t first, int64_t last) {
    const AttentionBias& bias = problem.bias;
    int64_t query = 0, query_end = 1;  // one row for all queries
    if (bias.query_stride) {
      query = vectors.begin(first) * kLanes<T>;
      query_end = vectors.begin(last) * kLanes<T>;
      if (query_end > problem.shape.tokens) query_end = problem.shape.tokens;
    }
    for (int64_t i = query; i < query_end; ++i) {
      for (int64_t j = 0; j < (bias.key_stride ? problem.shape.tokens : 1); ++j) {
        result[i * bias.query_stride + j * bias.key_stride] = T(0);
      }
    }
  }

  template <int kVectors>
  static void add_block(const AttentionGradientProblem& problem, const Line<S>& line, int64_t query,
                        LogitGradients<S, E>& gradients, T* result) {
    constexpr int64_t kColumns = kVectors * kLanes<T>;
    const AttentionBias& bias = problem.bias;
    const int64_t queries = line.tokens - query < kColumns ? line.tokens - query : kColumns;
    const auto per_query = gradients.template pack_queries<kVectors>(problem, line, query, queries);
    const Blocking key_blocks(line.tokens, kMaxKeys<T>);
    for (int64_t i = 0; i < key_blocks.count; ++i) {
      const int64_t key = key_blocks.begin(i), keys = key_blocks.size(i);
      gradients.template block<kVectors, true>(problem, line, query, key, keys, per_query);
      add_logits(gradients.d_logits, kColumns, keys, queries, bias.query_stride, bias.key_stride,
                 result + query * bias.query_stride + key * bias.key_stride);
    }
  }
};

// Adds the sums of the groups; a unit is some neighbouring elements.
template <class S>
struct AttentionBiasSums {
  using T = Accumulator<S>;
  static constexpr int64_t kElements = 1024;

  static int64_t units(const AttentionGroupedProblem& problem) {
    return ceil_divide(BiasUnits<T>(problem).elements, kElements);
  }

  static double unit_cycles(const AttentionGroupedProblem& problem) {
    return static_cast<double>(BiasUnits<T>(problem).groups.count * kElements) / 4;
  }

  static int64_t scratch_bytes(const AttentionGroupedProblem&) { return 0; }

  static void run(const AttentionGroupedProblem& problem, int64_t begin, int64_t end, void*) {
    const BiasUnits<T> units(problem);
    const int64_t last = end * kElements < units.elements ? end * kElements : units.elements;
    for (int64_t i = begin * kElements; i < last; i += kLanes<T>) {
      const T* from = static_cast<const T*>(problem.group_sums) + i;
      Vector<T> sum = {};
      for (int64_t group = 0; group < units.groups.count; ++group, from += units.elements) {
        sum += load_first(from, last - i);
      }
      store_first(static_cast<T*>(problem.gradient) + i, sum, last - i);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_BIAS_GRADIENT_H_
