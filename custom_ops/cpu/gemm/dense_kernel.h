// The kernel of a dense layer: dense.h defines the problem, products.h multiplies.
#ifndef CUSTOM_OPS_CPU_GEMM_DENSE_KERNEL_H_
#define CUSTOM_OPS_CPU_GEMM_DENSE_KERNEL_H_

#include "custom_ops/cpu/gemm/dense.h"
#include "custom_ops/cpu/gemm/heads.h"
#include "custom_ops/cpu/gemm/products.h"
#include "custom_ops/cpu/pack.h"
#include "custom_ops/cpu/simd/activations.h"

namespace vit {
namespace VIT_ISA {

// A unit is a block of rows times a panel. Neighbouring units have the same rows, which stay in
// the L2 cache.
template <class Product>
struct Dense {
  using Weight = typename Product::Weight;
  using Activation = typename Product::Activation;

  static int64_t panels(const DenseProblem& problem) {
    return ceil_divide(problem.columns, kPanelColumns) - problem.first_panel;
  }

  // The rows of a block. Tiles fit into it, except into the last one.
  static int64_t block_rows(const DenseProblem& problem) {
    // The rows take less than half of an L2 cache of 2 MB, the panels the rest.
    constexpr int64_t kL2Bytes = 768 * 1024, kFewestRows = 96, kUnitsPerThread = 4;
    const int64_t row_bytes = problem.depth * static_cast<int64_t>(sizeof(Activation));
    int64_t most = kL2Bytes / row_bytes;
    if (most > Product::kMostRows) most = Product::kMostRows;
    if (most < kFewestRows) most = kFewestRows;
    int64_t count = ceil_divide(problem.rows, most);
    // Few panels: more blocks, so that all threads end at about the same time.
    const int64_t wanted = ceil_divide(kUnitsPerThread * problem.threads, panels(problem));
    const int64_t possible = problem.rows / kFewestRows;
    if (count < wanted) count = wanted < possible ? wanted : possible > count ? possible : count;
    return round_up(ceil_divide(problem.rows, count), Product::kTileRows);
  }

  static int64_t units(const DenseProblem& problem) {
    if (problem.rows == 0) return 0;
    return ceil_divide(problem.rows, block_rows(problem)) * panels(problem);
  }

  static double unit_cycles(const DenseProblem& problem) {
    return static_cast<double>(block_rows(problem)) * static_cast<double>(problem.depth) *
           kPanelColumns / Product::kPerCycle;
  }

  static int64_t scratch_bytes(const DenseProblem& problem) {
    return Scratch::bytes<float>(Product::kSumRows * kPanelColumns) +
           Scratch::bytes<char>(Product::scratch_bytes(problem.depth));
  }

  static void run(const DenseProblem& problem, int64_t begin, int64_t end, void* memory) {
    Scratch scratch(memory);
    float* const sums = scratch.take<float>(Product::kSumRows * kPanelColumns);
    const int64_t depth = problem.depth;
    char* const panel_memory = scratch.take<char>(Product::scratch_bytes(depth));
    const int64_t rows = block_rows(problem), count = panels(problem);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t index = problem.first_panel + unit % count;
      const Weight* weights =
          static_cast<const Weight*>(problem.weights) + index * problem.panel_size;
      const auto* panel = Product::prepare(weights, depth, panel_memory);
      const int64_t first = unit / count * rows;
      const int64_t last = first + rows < problem.rows ? first + rows : problem.rows;
      const bool is_last = index + 1 == problem.first_panel + count;
      const int64_t bytes = depth * kPanelColumns * static_cast<int64_t>(sizeof(Weight));
      NextPanel next(is_last ? problem.next_panel : weights + problem.panel_size,
                     is_last ? problem.next_panel_bytes : bytes,
                     Product::template steps<typename Product::Element>(last - first, depth));
      for (int64_t row = first; row < last; row += Product::kSumRows) {
        const int64_t left = last - row;
        const int64_t now = left < Product::kSumRows ? left : Product::kSumRows;
        const Activation* input =
            static_cast<const Activation*>(problem.input) + row * problem.input_stride;
        Product::multiply(now, depth, input, problem.input_stride, panel, sums, next);
        write(problem, row, now, index * kPanelColumns, sums);
      }
    }
  }

  // Writes the sums of the rows from `row` on and the columns from `column` on.
  static void write(const DenseProblem& problem, int64_t row, int64_t rows, int64_t column,
                    float* sums) {
    const auto same = [](Vector<float> x, const float*, int64_t) { return x; };
    const auto with_tanh = [](Vector<float> x, const float*, int64_t) { return gelu_tanh(x); };
    const auto with_erf = [](Vector<float> x, const float*, int64_t) { return gelu_erf(x); };
    const auto add = [](Vector<float> x, const float* residual, int64_t count) {
      return x + load_first(residual, count);
    };
    switch (problem.epilogue) {
      case Epilogue::kBias:
        return write_with<Activation>(problem, row, rows, column, sums, same);
      case Epilogue::kFloat:
        return write_with<float>(problem, row, rows, column, sums, same);
      case Epilogue::kGeluTanh:
        return write_with<Activation>(problem, row, rows, column, sums, with_tanh);
      case Epilogue::kGeluErf:
        return write_with<Activation>(problem, row, rows, column, sums, with_erf);
      case Epilogue::kSwiglu:
        return write_swiglu(problem, row, rows, column, sums);
      case Epilogue::kHeads: {
        transform_heads(problem, row, rows, column, sums);
        DenseProblem rest = problem;
        rest.bias = nullptr;
        return write_with<Activation>(rest, row, rows, column, sums, same);
      }
      case Epilogue::kResidual:
        return write_with<float>(problem, row, rows, column, sums, add);
    }
  }

  // Writes function(sum + bias, residual, count), where `count` lanes are used. Products of pairs
  // read rows of an odd width to the end of the last pair, so that the 0 there is written too.
  template <class Output, class Function>
  static VIT_INLINE void write_with(const DenseProblem& problem, int64_t row, int64_t rows,
                                    int64_t column, const float* sums, Function function) {
    const int64_t left = problem.columns - column, period = problem.period;
    const int64_t columns = left < kPanelColumns ? left : kPanelColumns;
    Output* const output = static_cast<Output*>(problem.output) + row * problem.output_stride +
                           row / period * problem.output_gap;
    const int64_t residual = row * problem.residual_stride + row / period * problem.residual_gap;
    for (int64_t j = 0; j < columns; j += kLanes<float>) {
      const int64_t at = column + j, count = columns - j, rest = period - row % period;
      const Vector<float> bias =
          problem.bias ? load_first(problem.bias + at, count) : Vector<float>{};
      Rows<Output> to{output + at, problem.output_stride, rest, period, problem.output_gap};
      Rows<const float> from{problem.residual ? problem.residual + residual + at : nullptr,
                             problem.residual_stride, rest, period, problem.residual_gap};
      for (int64_t i = 0; i < rows; ++i, to.next(), from.next()) {
        const Vector<float> sum = load(sums + i * kPanelColumns + j) + bias;
        const Vector<float> result = function(sum, from.at, count);
        store_activation(to.at, result, sizeof(Output) == 2 ? round_up(count, 2) : count);
      }
    }
  }

  // Adds the bias to the sums, and transforms the heads of queries and keys among them.
  static VIT_INLINE void transform_heads(const DenseProblem& problem, int64_t row, int64_t rows,
                                         int64_t column, float* sums) {
    const HeadTransform& transform = problem.heads;
    const int64_t left = problem.columns - column, size = transform.head_size;
    const int64_t columns = left < kPanelColumns ? left : kPanelColumns;
    const int64_t first = column / size, after = first + columns / size;
    const int64_t last = after < 2 * transform.heads ? after : 2 * transform.heads;
    int64_t token = row % transform.tokens;
    for (int64_t i = 0; i < rows; ++i, sums += kPanelColumns) {
      for (int64_t j = 0; j < columns; j += kLanes<float>) {
        store<float>(sums + j, load(sums + j) + load_first(problem.bias + column + j, columns - j));
      }
      for (int64_t head = first; head < last; ++head) {
        transform_head(transform, head, token, sums + (head - first) * size);
      }
      if (++token == transform.tokens) token = 0;
    }
  }

  // Writes silu(gate) * up; `column` is the first one of the gates and what they multiply.
  static VIT_INLINE void write_swiglu(const DenseProblem& problem, int64_t row, int64_t rows,
                                      int64_t column, const float* sums) {
    constexpr int64_t kHalf = kPanelColumns / 2;
    const int64_t first = column / 2, size = problem.columns / 2, left = size - first;
    const int64_t columns = left < kHalf ? left : kHalf;
    Activation* const output =
        static_cast<Activation*>(problem.output) + row * problem.output_stride + first;
    for (int64_t j = 0; j < columns; j += kLanes<float>) {
      const int64_t count = columns - j;
      const float* const bias = problem.bias + first + j;
      const Vector<float> gate_bias = load_first(bias, count);
      const Vector<float> up_bias = load_first(bias + size, count);
      for (int64_t i = 0; i < rows; ++i) {
        const float* const from = sums + i * kPanelColumns + j;
        const Vector<float> result = silu(load(from) + gate_bias) * (load(from + kHalf) + up_bias);
        store_activation(output + i * problem.output_stride + j, result,
                         sizeof(Activation) == 2 ? round_up(count, 2) : count);
      }
    }
  }

  // Stores the first `count` lanes.
  template <class Output>
  static VIT_INLINE void store_activation(Output* at, Vector<float> x, int64_t count) {
#if defined(__AVX512BF16__)
    if constexpr (sizeof(Output) == 2) {
      if (count >= kLanes<float>) return store_rounded(at, x);
    }
#endif
    store_first(at, x, count);
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_GEMM_DENSE_KERNEL_H_
