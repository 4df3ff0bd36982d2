// Attention as its definition says, in loops over doubles: what the kernels are compared with, and
// how far from it the rounding of their type may take them.
#ifndef TESTS_CC_ATTENTION_ORACLE_H_
#define TESTS_CC_ATTENTION_ORACLE_H_

#include <math.h>

#include <vector>

#include "custom_ops/cc/attention.h"
#include "tests/cc/memory.h"

namespace vit_test {

struct AttentionProblem {
  vit::DType type;
  vit::AttentionShape shape;
  int64_t rows = 0, columns = 0;  // of the grid that distances are measured on
  // What lies in memory. The strides say how the bias does; without a bias it is empty.
  std::vector<double> qkv, d_out, bias;
  vit::AttentionBias strides = {};
  double asked_scale = 0;  // 0: that of the head size

  int64_t positions() const { return shape.batch * shape.lines * shape.tokens; }
  int64_t width() const { return shape.heads * shape.head_size; }
  double scale() const {
    return asked_scale > 0 ? asked_scale : vit::default_attention_scale(shape.head_size);
  }
  bool has_taps() const { return shape.lines == 1; }
};

// Gives the problem a bias of zeros that distinguishes the dimensions of `mask`: bits 0 to 4 for
// keys, queries, heads, lines and batch. They lie in memory in the `order` given, fastest first.
inline void shape_bias(AttentionProblem& problem, int mask,
                       const std::vector<int>& order = {0, 1, 2, 3, 4}) {
  const vit::AttentionShape& shape = problem.shape;
  const int64_t sizes[] = {shape.tokens, shape.tokens, shape.heads, shape.lines, shape.batch};
  int64_t* strides[] = {&problem.strides.key_stride, &problem.strides.query_stride,
                        &problem.strides.head_stride, &problem.strides.line_stride,
                        &problem.strides.batch_stride};
  int64_t count = 1;
  for (int i : order) {
    *strides[i] = mask >> i & 1 ? count : 0;
    if (mask >> i & 1) count *= sizes[i];
  }
  problem.bias.assign(static_cast<size_t>(count), 0.0);
}

struct AttentionExpected {
  Expected out, statistics, d_qkv, d_bias;
  Expected class_row, distance, entropy;
};

// One line of one head: rows of q, k, v, d_out, and where they come from.
class AttentionOracle {
 public:
  explicit AttentionOracle(const AttentionProblem& problem) : p_(problem), s_(problem.shape) {
    const int64_t width = p_.width(), lines = s_.batch * s_.lines * s_.heads;
    const int64_t heads = p_.has_taps() ? s_.batch * s_.heads : 0;
    result_.out = Expected(p_.positions() * width);
    result_.statistics = Expected(2 * lines * s_.tokens);
    result_.d_qkv = Expected(p_.positions() * 3 * width);
    result_.d_bias = Expected(static_cast<int64_t>(p_.bias.size()));
    result_.class_row = Expected(heads * s_.tokens);
    result_.distance = Expected(heads);
    result_.entropy = Expected(heads);
    scale_ = p_.asked_scale > 0 ? p_.asked_scale : 1 / sqrt(static_cast<double>(s_.head_size));
    // Pairs of bfloat16 are products of rounded weights.
    const bool pairs = p_.type == vit::DType::kBfloat16 && s_.head_size % 2 == 0 &&
                       vit::isa_available(vit::Isa::kAvx512Bf16);
    rounded_ = pairs ? unit(p_.type) : 0;
  }

  AttentionExpected run() {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t l = 0; l < s_.lines; ++l) {
        for (int64_t h = 0; h < s_.heads; ++h) line(b, l, h);
      }
    }
    return result_;
  }

 private:
  // The rows `part` of a tensor of `parts` x [heads, head_size] per position.
  std::vector<double> rows(const std::vector<double>& from, int64_t parts, int64_t part) const {
    std::vector<double> result;
    for (int64_t i = 0; i < s_.tokens; ++i) {
      const int64_t at = place(i, parts, part);
      result.insert(result.end(), from.begin() + at, from.begin() + at + s_.head_size);
    }
    return result;
  }
  int64_t place(int64_t token, int64_t parts, int64_t part) const {
    const int64_t position = b_ * s_.batch_stride + l_ * s_.line_stride + token * s_.token_stride;
    return ((position * parts + part) * s_.heads + h_) * s_.head_size;
  }
  int64_t bias_place(int64_t i, int64_t j) const {
    const vit::AttentionBias& s = p_.strides;
    return b_ * s.batch_stride + l_ * s.line_stride + h_ * s.head_stride + i * s.query_stride +
           j * s.key_stride;
  }
  static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

  void line(int64_t b, int64_t l, int64_t h) {
    b_ = b;
    l_ = l;
    h_ = h;
    q_ = rows(p_.qkv, 3, 0);
    k_ = rows(p_.qkv, 3, 1);
    v_ = rows(p_.qkv, 3, 2);
    d_out_ = rows(p_.d_out, 1, 0);
    for (int64_t i = 0; i < s_.tokens; ++i) query(i);
  }

  void query(int64_t i) {
    const int64_t n = s_.tokens, size = s_.head_size;
    const int64_t kept = ((b_ * s_.lines + l_) * s_.heads + h_) * 2 * n + i;
    const double u = unit(accumulator(p_.type));
    std::vector<double> p(static_cast<size_t>(n)), logit_errors(static_cast<size_t>(n));
    double highest = -HUGE_VAL, highest_error = 0;
    bool open = p_.bias.empty();
    for (int64_t j = 0; j < n; ++j) {
      double product = 0, absolute = 0;
      for (int64_t c = 0; c < size; ++c) {
        const double x = at(q_, i * size + c) * at(k_, j * size + c);
        product += x;
        absolute += fabs(x);
      }
      const double bias = p_.bias.empty() ? 0 : at(p_.bias, bias_place(i, j));
      p[static_cast<size_t>(j)] = product * scale_ + bias;
      if (isinf(bias)) continue;
      open = true;
      logit_errors[static_cast<size_t>(j)] = 8 * u * (absolute * scale_ + fabs(bias));
      highest_error = fmax(highest_error, at(logit_errors, j));
      highest = fmax(highest, p[static_cast<size_t>(j)]);
    }
    // Nothing is added for a row without keys: zeros without tolerance.
    if (!open) {
      result_.statistics.set(kept + n, HUGE_VAL, 0);
      return;
    }
    const std::vector<double> logits = p;
    double sum = 0;
    for (double& x : p) sum += x = exp(x - highest);
    for (double& x : p) x /= sum;

    // Largest logits are kept without their scale if they are products only.
    const double unscaled = p_.bias.empty() ? 1 / scale_ : 1;
    const double rounding = u * (16 + static_cast<double>(n) / 16);
    result_.statistics.set(kept, highest * unscaled, highest_error * unscaled);
    result_.statistics.set(kept + n, log2(sum), 3 * highest_error + 2 * rounding);
    // What the logits may do to a weight, and the rounding of the exponential and of the sum.
    std::vector<double> errors = weight_errors(logits, logit_errors, p);
    for (int64_t j = 0; j < n; ++j) {
      const double relative = rounding + 4 * u * (highest - at(logits, j)) + rounded_;
      if (at(p, j) > 0) errors[static_cast<size_t>(j)] += (at(p, j) + at(errors, j)) * relative;
    }
    set_errors(logits, errors, 1);
    const double delta = values(i, p);
    // Twice in what is computed from weights that were computed again.
    set_errors(logits, errors, 2);
    gradients(i, p, delta);
    if (p_.has_taps()) taps(i, p);
  }

  // How far weights p are from those of logits that are wrong by up to `errors`: the lowest and the
  // highest come from its own logit and all others at opposite ends. So if one key has all of the
  // weight, it has exactly that, however wrong its logit may be.
  static std::vector<double> weight_errors(const std::vector<double>& logits,
                                           const std::vector<double>& errors,
                                           const std::vector<double>& p) {
    std::vector<double> result(p.size(), 0.0);
    for (double sign : {-1.0, 1.0}) {
      std::vector<double> shifted;
      double highest = -HUGE_VAL;
      for (size_t j = 0; j < p.size(); ++j) {
        shifted.push_back(logits[j] + sign * errors[j]);
        highest = fmax(highest, shifted[j]);
      }
      // The others are those before and those behind: a difference from all would cancel.
      std::vector<double> others(p.size(), 0.0);
      double before = 0, behind = 0;
      for (size_t j = 0, k = p.size(); k-- > 0; ++j) {
        others[j] += before;
        before += exp(shifted[j] - highest);
        others[k] += behind;
        behind += exp(shifted[k] - highest);
      }
      for (size_t j = 0; j < p.size(); ++j) {
        if (isinf(logits[j])) continue;
        const double own = exp(fmin(logits[j] - sign * errors[j] - highest, 700));
        const double extreme = own + others[j] > 0 ? own / (own + others[j]) : 0;
        result[j] = fmax(result[j], fabs(extreme - p[j]));
      }
    }
    return result;
  }

  // A closed key has weight 0 exactly. Others may be taken for 0 if they are not normal numbers.
  void set_errors(const std::vector<double>& logits, const std::vector<double>& errors,
                  double times) {
    errors_.clear();
    for (size_t j = 0; j < logits.size(); ++j) {
      errors_.push_back(isinf(logits[j]) ? 0 : times * errors[j] + 0x1p-126);
    }
  }

  // out of query i; returns d_out . out, and keeps the same of absolute values.
  double values(int64_t i, const std::vector<double>& p) {
    const int64_t size = s_.head_size;
    double delta = 0;
    absolute_delta_ = 0;
    for (int64_t c = 0; c < size; ++c) {
      double sum = 0, absolute = 0, error = 0;
      for (int64_t j = 0; j < s_.tokens; ++j) {
        const double value = at(v_, j * size + c);
        sum += at(p, j) * value;
        absolute += at(p, j) * fabs(value);
        error += at(errors_, j) * fabs(value);
      }
      result_.out.set(place(i, 1, 0) + c, sum, error);
      delta += at(d_out_, i * size + c) * sum;
      absolute_delta_ += fabs(at(d_out_, i * size + c)) * absolute;
    }
    return delta;
  }

  void gradients(int64_t i, const std::vector<double>& p, double delta) {
    const int64_t size = s_.head_size, q = place(i, 3, 0);
    for (int64_t j = 0; j < s_.tokens; ++j) {
      const int64_t k = place(j, 3, 1), v = place(j, 3, 2);
      double product = 0, absolute = 0;
      for (int64_t c = 0; c < size; ++c) {
        const double d = at(d_out_, i * size + c), value = at(v_, j * size + c);
        product += d * value;
        absolute += fabs(d * value);
        result_.d_qkv.add(v + c, at(p, j) * d, at(errors_, j) * fabs(d));
      }
      const double ds = at(p, j) * (product - delta);
      // delta comes from an output that was rounded to the type.
      const double error =
          (absolute + absolute_delta_) * (at(errors_, j) + at(p, j) * unit(p_.type));
      for (int64_t c = 0; c < size; ++c) {
        const double key = at(k_, j * size + c) * scale_, query = at(q_, i * size + c) * scale_;
        result_.d_qkv.add(q + c, ds * key, error * fabs(key));
        result_.d_qkv.add(k + c, ds * query, error * fabs(query));
      }
      if (!p_.bias.empty()) result_.d_bias.add(bias_place(i, j), ds, error);
    }
  }

  void taps(int64_t i, const std::vector<double>& p) {
    const int64_t head = b_ * s_.heads + h_, n = s_.tokens, prefix = n - p_.rows * p_.columns;
    const double count = static_cast<double>(n);
    const double patches = static_cast<double>(p_.rows * p_.columns);
    // Of sums of n * n numbers, one after the other.
    const double sum_error = count * unit(accumulator(p_.type));
    for (int64_t j = 0; j < n; ++j) {
      const double x = at(p, j), error = at(errors_, j) + sum_error * x;
      if (i == 0) result_.class_row.set(head * n + j, x, at(errors_, j));
      if (x > 0) {
        const double term = fabs(log(x));
        result_.entropy.add(head, x * term / count, (2 + term) * error / count);
      }
      if (i < prefix || j < prefix) continue;
      const int64_t from = i - prefix, to = j - prefix;
      const double distance = hypot(static_cast<double>(from / p_.columns - to / p_.columns),
                                    static_cast<double>(from % p_.columns - to % p_.columns));
      result_.distance.add(head, x * distance / patches, error * distance / patches);
    }
  }

  const AttentionProblem& p_;
  const vit::AttentionShape& s_;
  AttentionExpected result_;
  double scale_, rounded_, absolute_delta_ = 0;
  int64_t b_ = 0, l_ = 0, h_ = 0;
  std::vector<double> q_, k_, v_, d_out_, errors_;
};

// The tensors of a problem, and the kernels on them.
struct AttentionRun {
  const AttentionProblem& problem;
  Tensor qkv, d_out, bias;
  Tensor out, statistics, d_qkv, d_bias;
  Tensor class_row, distance, entropy;
  vit::AttentionBias strides;

  AttentionRun(const AttentionProblem& problem, int shift)
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

  // Lines with taps.
  int64_t heads() const {
    return problem.has_taps() ? problem.shape.batch * problem.shape.heads : 0;
  }

  vit::Result forward(vit::ParallelFor parallel_for) {
    return vit::attention_forward(problem.type, problem.shape, problem.scale(), qkv.data(), strides,
                                  out.data(), statistics.data(), parallel_for);
  }
  vit::Result backward(vit::ParallelFor parallel_for) {
    return vit::attention_backward(problem.type, problem.shape, problem.scale(), qkv.data(), strides,
                                   out.data(), statistics.data(), d_out.data(), d_qkv.data(),
                                   parallel_for);
  }
  vit::Result bias_gradient(vit::ParallelFor parallel_for) {
    if (!strides.data) return vit::Result::kOk;
    return vit::attention_bias_gradient(problem.type, problem.shape, problem.scale(), qkv.data(),
                                        strides, out.data(), statistics.data(), d_out.data(),
                                        d_bias.data(), parallel_for);
  }
  vit::Result taps(vit::ParallelFor parallel_for) {
    if (!problem.has_taps()) return vit::Result::kOk;
    vit::AttentionTaps wanted = {class_row.data(), nullptr, entropy.data(), 0, 0};
    if (problem.rows > 0) {
      wanted.distance = distance.data();
      wanted.rows = problem.rows;
      wanted.columns = problem.columns;
    }
    return vit::attention_taps(problem.type, problem.shape, problem.scale(), qkv.data(), strides,
                               statistics.data(), wanted, parallel_for);
  }
  void all(vit::ParallelFor parallel_for) {
    for (Tensor* tensor : results()) tensor->forget();
    const bool ok = forward(parallel_for) == vit::Result::kOk &&
                    backward(parallel_for) == vit::Result::kOk &&
                    bias_gradient(parallel_for) == vit::Result::kOk &&
                    taps(parallel_for) == vit::Result::kOk;
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
    expect_near("out", out, expected.out);
    expect_near("statistics", statistics, expected.statistics);
    expect_near("d_qkv", d_qkv, expected.d_qkv);
    expect_near("d_bias", d_bias, expected.d_bias);
    expect_near("class_row", class_row, expected.class_row);
    if (problem.rows > 0) expect_near("distance", distance, expected.distance);
    expect_near("entropy", entropy, expected.entropy);
    expect_sums();
    expect_intact();
  }

  // The weights of a query that has a key add up to 1, whatever the rounding of its logits did to
  // them: those of query 0 in class_row, and those of all in the gradient of v, which adds up to
  // that of out.
  void expect_sums() {
    const vit::AttentionShape& s = problem.shape;
    const double u = unit(bias.type()), n = static_cast<double>(s.tokens);
    const double error = u * (32 + n / 8) + 2 * unit(problem.type);
    for (int64_t head = 0; head < heads(); ++head) {
      if (s.tokens == 0 || isinf(statistics.at((2 * head + 1) * s.tokens))) continue;
      double sum = 0;
      for (int64_t j = 0; j < s.tokens; ++j) sum += class_row.at(head * s.tokens + j);
      EXPECT(fabs(sum - 1) <= u * (32 + n / 8), "class_row of head %lld adds up to %.9g",
             static_cast<long long>(head), sum);
    }
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
        // Weights that are no normal numbers count as 0.
        EXPECT(fabs(got - want) <= error * magnitude + n * smallest(problem.type) + n * 0x1p-100,
               "d_v of column %lld, line %lld adds up to %.9g, not %.9g +- %.3g",
               static_cast<long long>(c), static_cast<long long>(line), got, want,
               error * magnitude);
      }
    }
  }

  void expect_same(AttentionRun& other) {
    const std::vector<Tensor*> a = results(), b = other.results();
    for (size_t i = 0; i < a.size(); ++i) EXPECT(*a[i] == *b[i], "result %zu differs", i);
  }
};

}  // namespace vit_test

#endif  // TESTS_CC_ATTENTION_ORACLE_H_
