// How logits come from products, and logits without tensor cores. Forward, gradients and taps add
// the products in the same order, so that they get the same bits.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_SCALAR_LOGITS_H_
#define CUSTOM_OPS_CUDA_ATTENTION_SCALAR_LOGITS_H_

#include "custom_ops/cuda/attention/attention_geometry.h"
#include "custom_ops/cuda/attention/line.h"

namespace vit {

// The bytes of shared memory that a block of the current GPU may have. kNoKernel: float64.
// kTooLarge: heads whose size int does not count.
inline CudaResult attention_limits(const AttentionProblem& problem, int64_t* most_shared) {
  if (problem.type == DType::kFloat64) return CudaResult::kNoKernel;
  if (problem.shape.head_size > 0x7fffffff) return CudaResult::kTooLarge;
  return most_shared_bytes(most_shared);
}

// LogitScales as kernels use them.
struct KernelScales {
  float of_queries, of_products, of_exponents, of_largest;
};
inline KernelScales kernel_scales(const AttentionProblem& problem, AttentionPath path) {
  const LogitScales scales = logit_scales(problem, path);
  return {static_cast<float>(scales.of_queries), static_cast<float>(scales.of_products),
          static_cast<float>(scales.of_exponents), static_cast<float>(scales.of_largest)};
}

VIT_DEVICE float infinity() { return static_cast<float>(__builtin_huge_val()); }
VIT_DEVICE float not_a_number() { return static_cast<float>(__builtin_nan("")); }

// The first statistic of a query with the largest logit `largest`, and the second, of a query whose
// weights add up to `total`. If no logit is finite, the total is 0 and the result NaN, as in
// softmax.
VIT_DEVICE void write_statistics(float* statistics, int64_t tokens, int64_t query, bool has_keys,
                                 float largest, float total) {
  const float log2_total = total > 0 ? logarithm_of_two(total) : not_a_number();
  statistics[query] = has_keys ? largest : 0;
  statistics[tokens + query] = has_keys ? log2_total : infinity();
}

// The logits of a block of 256 threads: kKeysPerTile queries and as many keys. A thread holds
// tile.sums[i][j] of the query row(i) and the key column(j).
template <class T>
struct ScalarLogits {
  using Product = ScalarTile;
  static constexpr int kPerThread = Product::kPerThread;

  Product tile;

  // q k^T of the rows that exist; the others count as zeros. `shared`: see ScalarTile.
  VIT_DEVICE_METHOD void multiply(const Rows<T>& queries, const Rows<T>& keys, float of_queries,
                                  float* shared) {
    tile.clear();
    tile.add_product<true, true>(
        queries.columns,
        [&](int row, int64_t k) {
          if (row >= queries.rows) return 0.0f;
          return to_float(queries.data[row * queries.stride + k]) * of_queries;
        },
        [&](int64_t k, int row) {
          return row < keys.rows ? to_float(keys.data[row * keys.stride + k]) : 0.0f;
        },
        shared);
  }

  // Logits = products * scale + bias, if there is one; -inf from key number `keys` on. `bias`
  // belongs to the first query and key of the tile, which has `rows` queries and `keys` keys. Sets
  // the bit i of `open` if row i has a bias other than -inf.
  VIT_DEVICE_METHOD void finish(const float* bias, const AttentionBias& strides, float scale,
                                int rows, int keys, int& open) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = Product::row(i);
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        const int column = Product::column(j);
        float& logit = tile.sums[i][j];
        if (column >= keys) {
          logit = -infinity();
        } else if (bias && row < rows) {
          const float added = bias[row * strides.query_stride + column * strides.key_stride];
          logit = fused_product(logit, scale, added);
          if (added != -infinity()) open |= 1 << i;
        }
      }
    }
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_SCALAR_LOGITS_H_
