// Attention by its definition, in loops over doubles. Tests compare the kernels with it. It also
// computes tolerances: the largest errors that rounding to the type can cause.
#ifndef TESTS_CC_ATTENTION_ORACLE_H_
#define TESTS_CC_ATTENTION_ORACLE_H_

#include <math.h>

#include <vector>

#include "tests/cc/attention_case.h"
#include "tests/cc/memory.h"

namespace vit_test {

struct AttentionExpected {
  Expected out, statistics, d_qkv, d_bias;
  Expected class_row, distance, entropy;
};

// One line of one head: rows of q, k, v and d_out, and their positions in the tensors.
class AttentionOracle {
 public:
  explicit AttentionOracle(const AttentionCase& problem, bool on_gpu = false)
      : p_(problem), s_(problem.shape) {
    const int64_t width = p_.width(), lines = s_.batch * s_.lines * s_.heads;
    const int64_t heads = p_.has_taps() ? s_.batch * s_.heads : 0;
    result_.out = Expected(p_.positions() * width);
    result_.statistics = Expected(2 * lines * s_.tokens);
    result_.d_qkv = Expected(p_.positions() * 3 * width);
    result_.d_bias = Expected(static_cast<int64_t>(p_.bias.size()));
    result_.class_row = Expected(heads * s_.tokens);
    result_.distance = Expected(heads);
    result_.entropy = Expected(heads);
    const double default_scale = 1 / sqrt(static_cast<double>(s_.head_size));
    scale_ = p_.explicit_scale > 0 ? p_.explicit_scale : default_scale;
    // Products of Pairs of bfloat16 multiply rounded weights, and so do tensor cores.
    const bool pairs = p_.type == vit::DType::kBfloat16 && s_.head_size % 2 == 0 &&
                       vit::isa_available(vit::Isa::kAvx512Bf16);
    const bool tensor = vit::size_of(p_.type) == 2 && s_.head_size <= 128;
    rounded_ = (on_gpu ? tensor : pairs) ? unit(p_.type) : 0;
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
  // Rows `part` of a tensor of `parts` x [heads, head_size] per position.
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
    // Nothing is added for a query without keys: exact zeros, without tolerance.
    if (!open) {
      result_.statistics.set(kept + n, HUGE_VAL, 0);
      return;
    }
    const std::vector<double> logits = p;
    double sum = 0;
    for (double& x : p) sum += x = exp(x - highest);
    for (double& x : p) x /= sum;

    // Without a bias the kernels store the largest logit with only a power of two of its scale.
    const double power = exp2(fmax(-32, floor(log2(fmin(scale_, 1)))));
    const double unscaled = p_.bias.empty() ? power / scale_ : 1;
    const double rounding = u * (16 + static_cast<double>(n) / 16);
    result_.statistics.set(kept, highest * unscaled, highest_error * unscaled);
    result_.statistics.set(kept + n, log2(sum), 3 * highest_error + 2 * rounding);
    // The effect of the errors of logits on a weight, and the rounding of the exponential and of
    // the sum.
    std::vector<double> errors = weight_errors(logits, logit_errors, p);
    for (int64_t j = 0; j < n; ++j) {
      const double relative = rounding + 4 * u * (highest - at(logits, j)) + rounded_;
      if (at(p, j) > 0) errors[static_cast<size_t>(j)] += (at(p, j) + at(errors, j)) * relative;
      // Before they are divided by the sum, the weights are rounded.
      if (at(p, j) > 0 && rounded_ > 0) errors[static_cast<size_t>(j)] += smallest(p_.type) / sum;
    }
    set_errors(logits, errors, 1);
    const double delta = values(i, p);
    // Results that use recomputed weights have the error twice.
    set_errors(logits, errors, 2);
    gradients(i, p, delta);
    if (p_.has_taps()) taps(i, p);
  }

  // How far the weights p can be from weights of logits with errors of up to `errors`. A weight is
  // lowest or highest if the errors of its own logit and of all others have opposite signs. So a
  // key that has the whole weight keeps exactly that weight, whatever the error of its logit.
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
      // Sums the weights before and after each key: subtracting from the total would cancel digits.
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

  // A closed key has weight 0 exactly. Weights that are not normal numbers may be computed as 0.
  void set_errors(const std::vector<double>& logits, const std::vector<double>& errors,
                  double times) {
    errors_.clear();
    for (size_t j = 0; j < logits.size(); ++j) {
      errors_.push_back(isinf(logits[j]) ? 0 : times * errors[j] + 0x1p-126);
    }
  }

  // Computes out of query i. Returns d_out . out, and stores the same sum of absolute values.
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
      // delta is computed from an output that was rounded to the type.
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
    // The error of sums of n * n numbers, added one after the other.
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

  const AttentionCase& p_;
  const vit::AttentionShape& s_;
  AttentionExpected result_;
  double scale_, rounded_, absolute_delta_ = 0;
  int64_t b_ = 0, l_ = 0, h_ = 0;
  std::vector<double> q_, k_, v_, d_out_, errors_;
};

}  // namespace vit_test

#endif  // TESTS_CC_ATTENTION_ORACLE_H_
