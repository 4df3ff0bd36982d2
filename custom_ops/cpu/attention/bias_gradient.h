// The gradient of the bias: see logit_gradients.h.
#ifndef CUSTOM_OPS_CPU_ATTENTION_BIAS_GRADIENT_H_
#define CUSTOM_OPS_CPU_ATTENTION_BIAS_GRADIENT_H_

#include "custom_ops/cpu/attention/logit_gradients.h"

namespace vit {
namespace VIT_ISA {

// A unit computes the elements of d_bias of one batch element, line and head of the bias, for one
// block of queries (for all queries, if the bias has one row for all of them). It loops over all
// logits to which these elements were added.
template <class S, class E = Accumulator<S>>
struct AttentionBiasGradient {
  using T = Accumulator<S>;

  static int64_t query_blocks(const AttentionGradientProblem& problem) {
    return ceil_divide(ceil_divide(problem.shape.tokens, kLanes<T>), kMaxVectors);
  }

  static int64_t units(const AttentionGradientProblem& problem) {
    const AttentionBias& bias = problem.bias;
    const AttentionShape& shape = problem.shape;
    return (bias.batch_stride ? shape.batch : 1) * (bias.line_stride ? shape.lines : 1) *
           (bias.head_stride ? shape.heads : 1) * (bias.query_stride ? query_blocks(problem) : 1);
  }

  static double unit_cycles(const AttentionGradientProblem& problem) {
    return line_cycles(problem.shape, 2);
  }

  static int64_t scratch_bytes(const AttentionGradientProblem& problem) {
    return LogitGradients<S, E>::scratch_bytes(problem);
  }

  static void run(const AttentionGradientProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    Scratch scratch(memory);
    LogitGradients<S, E> gradients(problem, scratch);
    const AttentionShape& shape = problem.shape;
    const AttentionBias& bias = problem.bias;
    const int64_t blocks = query_blocks(problem);
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
      T* result = static_cast<T*>(problem.gradient) + batch * bias.batch_stride +
                  line * bias.line_stride + head * bias.head_stride;
      const Blocking vectors(ceil_divide(shape.tokens, kLanes<T>), kMaxVectors);
      // `vectors` has no blocks if there are no tokens, so begin() cannot be called.
      clear(problem, result, blocks ? vectors.begin(block) * kLanes<T> : 0,
            blocks ? vectors.begin(block_end) * kLanes<T> : 0);
      for (int64_t b = batch; b < batch_end; ++b) {
        for (int64_t l = line; l < line_end; ++l) {
          for (int64_t h = head; h < head_end; ++h) {
            const Line<S> at(shape, (b * shape.lines + l) * shape.heads + h);
            gradients.pack_line(problem, at);
            for (int64_t i = block; i < block_end; ++i) {
              const int64_t query = vectors.begin(i) * kLanes<T>;
              switch (vectors.size(i)) {
                case 1:
                  add_block<1>(problem, at, query, gradients, result);
                  break;
                case 2:
                  add_block<2>(problem, at, query, gradients, result);
                  break;
#if defined(__AVX512F__)
                case 3:
                  add_block<3>(problem, at, query, gradients, result);
                  break;
                case 4:
                  add_block<4>(problem, at, query, gradients, result);
                  break;
#endif
              }
            }
          }
        }
      }
    }
  }

  static void clear(const AttentionGradientProblem& problem, T* result, int64_t query,
                    int64_t query_end) {
    const AttentionBias& bias = problem.bias;
    const int64_t queries = query_end < problem.shape.tokens ? query_end : problem.shape.tokens;
    for (int64_t i = bias.query_stride ? query : 0; i < (bias.query_stride ? queries : 1); ++i) {
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
      T* at = result + query * bias.query_stride + key * bias.key_stride;
      // All keys of the row have one element of the bias: sum them first.
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

#endif  // CUSTOM_OPS_CPU_ATTENTION_BIAS_GRADIENT_H_
