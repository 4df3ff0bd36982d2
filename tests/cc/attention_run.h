// Runs the attention kernels on the inputs of a test, and checks their results.
#ifndef TESTS_CC_ATTENTION_RUN_H_
#define TESTS_CC_ATTENTION_RUN_H_

#include <vector>

#include "custom_ops/cpu/attention/cpu_attention.h"
#include "custom_ops/cuda/cuda_attention.h"
#include "tests/cc/attention_oracle.h"
#include "tests/cc/threads.h"

namespace vit_test {

// The tensors of a case, and the kernels that run on them.
struct AttentionRun {
  const AttentionCase& problem;
  Tensor qkv, d_out, bias;
  Tensor out, statistics, d_qkv, d_bias;
  Tensor class_row, distance, entropy;
  vit::AttentionBias strides;

  AttentionRun(const AttentionCase& problem, int shift)
      : problem(problem),
        qkv(problem.type, problem.qkv, shift),
        d_out(problem.type, problem.d_out, shift),
        bias(accumulator(problem.type), problem.bias, shift),
        out(problem.type, problem.d_out.size(), Tensor::kOutput, shift),
        statistics(bias.type(), 2 * problem.positions() * problem.shape.heads, Tensor::kOutput,
                   shift),
        d_qkv(problem.type, qkv.count(), Tensor::kOutput, shift),
        d_bias(bias.type(), bias.count(), Tensor::kOutput, shift),
        class_row(bias.type(), heads() * problem.shape.tokens, Tensor::kOutput, shift),
        distance(bias.type(), heads(), Tensor::kOutput, shift),
        entropy(bias.type(), heads(), Tensor::kOutput, shift),
        strides(problem.strides) {
    strides.data = problem.bias.empty() ? nullptr : bias.data();
  }

  // The number of lines that have taps.
  int64_t heads() const {
    return problem.has_taps() ? problem.shape.batch * problem.shape.heads : 0;
  }

  vit::AttentionProblem inputs() const {
    return {problem.type, problem.shape, problem.scale(), qkv.data(), strides};
  }
  // `where` is a ParallelFor, or the Gpu of gpu_scratch.h.
  template <class Where>
  auto forward(const Where& where) {
    return vit::attention_forward({inputs(), out.data(), statistics.data()}, execution(where));
  }
  vit::AttentionGradientProblem gradient(Tensor& result) const {
    return {inputs(), out.data(), statistics.data(), d_out.data(), result.data()};
  }
  template <class Where>
  auto backward(const Where& where) {
    return vit::attention_backward(gradient(d_qkv), execution(where));
  }
  template <class Where>
  auto bias_gradient(const Where& where) {
    using Result = typename decltype(execution(where))::Result;
    if (!strides.data) return Result::kOk;
    return vit::attention_bias_gradient(gradient(d_bias), execution(where));
  }
  template <class Where>
  auto taps(const Where& where) {
    using Result = typename decltype(execution(where))::Result;
    if (!problem.has_taps()) return Result::kOk;
    vit::AttentionTapsProblem wanted = {inputs(), statistics.data(), 0, 0, class_row.data(),
                                        nullptr,  entropy.data()};
    if (problem.rows > 0) {
      wanted.distance = distance.data();
      wanted.rows = problem.rows;
      wanted.columns = problem.columns;
    }
    return vit::attention_taps(wanted, execution(where));
  }
  template <class Where>
  void forward_and_taps(const Where& where) {
    using Result = typename decltype(execution(where))::Result;
    for (Tensor* tensor : results()) tensor->forget();
    const bool ok = forward(where) == Result::kOk && taps(where) == Result::kOk;
    EXPECT(ok, "a kernel reports that it failed");
  }
  template <class Where>
  void all(const Where& where) {
    using Result = typename decltype(execution(where))::Result;
    forward_and_taps(where);
    const bool ok = backward(where) == Result::kOk && bias_gradient(where) == Result::kOk;
    EXPECT(ok, "a kernel reports that it failed");
  }

  std::vector<Tensor*> results() {
    return {&out, &statistics, &d_qkv, &d_bias, &class_row, &distance, &entropy};
  }

  void expect_intact() {
    for (Tensor* tensor : {&qkv, &d_out, &bias}) EXPECT(tensor->intact(), "an input was written");
    for (Tensor* tensor : results()) {
      EXPECT(tensor->intact(), "something was written outside of an output");
    }
  }

  void expect(const AttentionExpected& expected) {
    expect_forward(expected);
    expect_near("d_qkv", d_qkv, expected.d_qkv);
    expect_near("d_bias", d_bias, expected.d_bias);
    expect_gradient_sums();
  }

  void expect_forward(const AttentionExpected& expected) {
    expect_near("out", out, expected.out);
    expect_near("statistics", statistics, expected.statistics);
    expect_near("class_row", class_row, expected.class_row);
    if (problem.rows > 0) expect_near("distance", distance, expected.distance);
    expect_near("entropy", entropy, expected.entropy);
    expect_row_sums();
    expect_intact();
  }

  // The weights of a query that has keys add up to 1, whatever the rounding errors of its logits.
  // This is checked for query 0 in class_row, and for all queries in the gradient of v, whose sum
  // is the sum of the gradient of out.
  void expect_row_sums() {
    const vit::AttentionShape& s = problem.shape;
    const double error = unit(bias.type()) * (32 + static_cast<double>(s.tokens) / 8);
    for (int64_t head = 0; head < heads(); ++head) {
      if (s.tokens == 0 || isinf(statistics.at((2 * head + 1) * s.tokens))) continue;
      double sum = 0;
      for (int64_t j = 0; j < s.tokens; ++j) sum += class_row.at(head * s.tokens + j);
      EXPECT(fabs(sum - 1) <= error, "class_row of head %lld adds up to %.9g", number(head), sum);
    }
  }
  void expect_gradient_sums() {
    const vit::AttentionShape& s = problem.shape;
    const double n = static_cast<double>(s.tokens);
    const double error = unit(bias.type()) * (32 + n / 8) + 2 * unit(problem.type);
    const int64_t width = problem.width();
    for (int64_t line = 0; line < s.batch * s.lines; ++line) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t b = line / s.lines, l = line % s.lines, head = c / s.head_size;
        double want = 0, got = 0, magnitude = 0;
        for (int64_t i = 0; i < s.tokens; ++i) {
          const int64_t at = b * s.batch_stride + l * s.line_stride + i * s.token_stride;
          got += d_qkv.at((at * 3 + 2) * width + c);
          if (isinf(statistics.at(((line * s.heads + head) * 2 + 1) * s.tokens + i))) continue;
          want += d_out.at(at * width + c);
          magnitude += fabs(d_out.at(at * width + c));
        }
        // Weights that are not normal numbers count as 0.
        EXPECT(fabs(got - want) <= error * magnitude + n * smallest(problem.type) + n * 0x1p-100,
               "d_v of column %lld, line %lld adds up to %.9g, not %.9g +- %.3g", number(c),
               number(line), got, want, error * magnitude);
      }
    }
  }

  void expect_same(AttentionRun& other) {
    const std::vector<Tensor*> a = results(), b = other.results();
    for (size_t i = 0; i < a.size(); ++i) EXPECT(*a[i] == *b[i], "result %zu differs", i);
  }
};

}  // namespace vit_test

#endif  // TESTS_CC_ATTENTION_RUN_H_
