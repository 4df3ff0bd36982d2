// The kernels of a training step (cc/row_problems.h) against loops over doubles. Kernels write
// nothing outside of their outputs, and the number of threads changes no bit.
#include <initializer_list>
#include <vector>

#include "custom_ops/cc/row_problems.h"
#include "tests/cc/devices.h"
#include "tests/cc/memory.h"
#include "tests/cc/threads.h"

namespace {

using namespace vit_test;
using vit::DType;

constexpr DType kRowTypes[] = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};

std::vector<double> normals(Random& random, DType type, int64_t count, double times = 1) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& x : values) x = rounded_to(type, times * random.normal());
  return values;
}

double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

double gelu_oracle(bool exact, double x) {
  if (exact) return x * 0.5 * erfc(-x * M_SQRT1_2);
  return x * 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double slope_oracle(bool exact, double x) {
  if (exact) return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
  const double y = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + y) + 0.5 * x * (1 - y * y) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// The base of the runs below: `inputs` are read, `results` written.
struct Run {
  std::vector<Tensor*> inputs, results;

  virtual ~Run() = default;
  virtual vit::Result call(const vit::Execution& execution) = 0;

  void all(vit::ParallelFor parallel_for) {
    for (Tensor* tensor : results) tensor->forget();
    EXPECT(call(execution(parallel_for)) == vit::Result::kOk, "a kernel reports that it failed");
  }
  void expect_intact() {
    for (Tensor* tensor : inputs) EXPECT(tensor->intact(), "an input was written");
    for (Tensor* tensor : results) {
      EXPECT(tensor->intact(), "something was written outside of an output");
    }
  }
  void expect_same(Run& other) {
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT(*results[i] == *other.results[i], "result %zu differs", i);
    }
  }
};

struct GeluCase {
  DType type;
  bool exact;
  int64_t rows, width;
  std::vector<double> x, bias, d_out;

  GeluCase(Random& random, DType type, bool exact, int64_t rows, int64_t width)
      : type(type),
        exact(exact),
        rows(rows),
        width(width),
        x(normals(random, type, rows * width, 3)),
        bias(normals(random, type, width)),
        d_out(normals(random, type, rows * width)) {}
};

struct GeluRun : Run {
  const GeluCase& c;
  Tensor x, bias, d_out, out, d_x, d_bias;

  GeluRun(const GeluCase& c, int shift)
      : c(c),
        x(c.type, c.x, shift),
        bias(c.type, c.bias, shift),
        d_out(c.type, c.d_out, shift),
        out(c.type, x.count(), Tensor::kOutput, shift),
        d_x(c.type, x.count(), Tensor::kOutput, shift),
        d_bias(c.type, c.width, Tensor::kOutput, shift) {
    inputs = {&x, &bias, &d_out};
    results = {&out, &d_x, &d_bias};
  }
  vit::Result call(const vit::Execution& execution) override {
    const vit::BiasGeluProblem problem = {c.type,   c.exact,     c.rows,    c.width,
                                          x.data(), bias.data(), out.data()};
    const vit::Result result = bias_gelu(problem, execution);
    if (result != vit::Result::kOk) return result;
    return bias_gelu_gradient({problem, d_out.data(), d_x.data(), d_bias.data()}, execution);
  }
  void expect() {
    const double u = unit(DType::kFloat32);
    Expected out_oracle(x.count()), d_x_oracle(x.count()), d_bias_oracle(c.width);
    for (int64_t i = 0; i < x.count(); ++i) {
      const double sum = at(c.x, i) + at(c.bias, i % c.width), d = at(c.d_out, i);
      const double error = u * (4 + 2 * fabs(sum));
      out_oracle.set(i, gelu_oracle(c.exact, sum), error * fabs(sum) + u);
      const double slope = slope_oracle(c.exact, sum);
      d_x_oracle.set(i, d * slope, error * fabs(d));
      d_bias_oracle.add(i % c.width, d * slope, (error + u * 24) * fabs(d));
    }
    expect_near("out", out, out_oracle);
    expect_near("d_x", d_x, d_x_oracle);
    expect_near("d_bias", d_bias, d_bias_oracle);
    expect_intact();
  }
};

struct NormCase {
  DType type;
  bool has_branch;
  int64_t rows, width;
  std::vector<double> x, branch, scale, bias, d_normalized, d_sum;
  float epsilon = 1e-3f;

  NormCase(Random& random, DType type, bool has_branch, int64_t rows, int64_t width)
      : type(type),
        has_branch(has_branch),
        rows(rows),
        width(width),
        x(normals(random, type, rows * width, 2)),
        branch(normals(random, type, has_branch ? rows * width : 0)),
        scale(normals(random, DType::kFloat32, width)),
        bias(normals(random, DType::kFloat32, width)),
        d_normalized(normals(random, type, rows * width)),
        d_sum(normals(random, type, has_branch ? rows * width : 0)) {
    // A mean far from 0, where the difference of two means of squares would cancel.
    for (int64_t i = 0; i < width; ++i) {
      double& value = x[static_cast<size_t>(i)];
      value = rounded_to(type, value + 64);
    }
  }
};

struct NormRun : Run {
  const NormCase& c;
  Tensor x, branch, scale, bias, d_normalized, d_sum;
  Tensor sum, normalized, statistics, d_x, d_scale, d_bias;

  NormRun(const NormCase& c, int shift)
      : c(c),
        x(c.type, c.x, shift),
        branch(c.type, c.branch, shift),
        scale(DType::kFloat32, c.scale, shift),
        bias(DType::kFloat32, c.bias, shift),
        d_normalized(c.type, c.d_normalized, shift),
        d_sum(c.type, c.d_sum, shift),
        sum(c.type, branch.count(), Tensor::kOutput, shift),
        normalized(c.type, x.count(), Tensor::kOutput, shift),
        statistics(DType::kFloat32, 2 * c.rows, Tensor::kOutput, shift),
        d_x(c.type, x.count(), Tensor::kOutput, shift),
        d_scale(DType::kFloat32, c.width, Tensor::kOutput, shift),
        d_bias(DType::kFloat32, c.width, Tensor::kOutput, shift) {
    inputs = {&x, &branch, &scale, &bias, &d_normalized, &d_sum};
    results = {&sum, &normalized, &statistics, &d_x, &d_scale, &d_bias};
  }
  static float* floats(Tensor& tensor) { return static_cast<float*>(tensor.data()); }

  vit::Result call(const vit::Execution& execution) override {
    void *const added = c.has_branch ? branch.data() : nullptr, *const total = c.has_branch
                                                                                   ? sum.data()
                                                                                   : nullptr;
    const vit::Result result =
        residual_norm({c.type, c.rows, c.width, c.epsilon, x.data(), added, floats(scale),
                       floats(bias), total, normalized.data(), floats(statistics)},
                      execution);
    if (result != vit::Result::kOk) return result;
    return residual_norm_gradient(
        {c.type, c.rows, c.width, c.has_branch ? total : x.data(), floats(statistics),
         floats(scale), d_normalized.data(), c.has_branch ? d_sum.data() : nullptr, d_x.data(),
         floats(d_scale), floats(d_bias)},
        execution);
  }
  void expect() {
    const double u = unit(DType::kFloat32), count = static_cast<double>(c.width);
    Expected sums(sum.count()), normals(x.count()), pulls(x.count());
    Expected of_scale(c.width), of_bias(c.width);
    std::vector<double> row(static_cast<size_t>(c.width)), n(row), g(row);
    for (int64_t i = 0; i < c.rows; ++i) {
      double mean = 0, variance = 0, largest = 0, pull_mean = 0, product_mean = 0, pull_size = 0;
      for (int64_t j = 0; j < c.width; ++j) {
        const int64_t k = i * c.width + j;
        double& value = row[static_cast<size_t>(j)];
        value = at(c.x, k);
        if (c.has_branch) {
          value = rounded_to(c.type, value + at(c.branch, k));
          sums.set(k, value, u * fabs(value));
        }
        mean += value / count;
        largest = fmax(largest, fabs(value));
      }
      for (double value : row) variance += (value - mean) * (value - mean) / count;
      const double factor = 1 / sqrt(variance + static_cast<double>(c.epsilon));
      // The error of the mean, as a fraction of the spread, enters every number of the row.
      const double error = u * (8 + count / 16) * (1 + largest * factor);
      for (int64_t j = 0; j < c.width; ++j) {
        const int64_t k = i * c.width + j;
        const double value = (row[static_cast<size_t>(j)] - mean) * factor,
                     d = at(c.d_normalized, k);
        n[static_cast<size_t>(j)] = value;
        g[static_cast<size_t>(j)] = d * at(c.scale, j);
        normals.set(k, value * at(c.scale, j) + at(c.bias, j),
                    error * (1 + fabs(value)) * fabs(at(c.scale, j)) + 2 * u * fabs(at(c.bias, j)));
        of_scale.add(j, d * value, (error * (1 + fabs(value)) + u * 24 * fabs(value)) * fabs(d));
        of_bias.add(j, d, u * 24 * fabs(d));
        pull_mean += at(g, j) / count;
        product_mean += at(g, j) * value / count;
        pull_size += fabs(at(g, j)) * (1 + fabs(value)) / count;
      }
      for (int64_t j = 0; j < c.width; ++j) {
        const int64_t k = i * c.width + j;
        const double value = factor * (at(g, j) - pull_mean - at(n, j) * product_mean);
        const double size = fabs(at(g, j)) + pull_size * (1 + fabs(at(n, j)));
        const double added = c.has_branch ? at(c.d_sum, k) : 0;
        pulls.set(k, value + added, 4 * error * factor * size + 2 * u * fabs(added));
      }
    }
    expect_near("sum", sum, sums);
    expect_near("normalized", normalized, normals);
    expect_near("d_x", d_x, pulls);
    expect_near("d_scale", d_scale, of_scale);
    expect_near("d_bias", d_bias, of_bias);
    expect_intact();
  }
};

struct UpdateCase {
  DType type;  // of the momentum
  bool is_adamw;
  int64_t size;
  std::vector<double> weight, gradient, momentum, variance, scalars;

  UpdateCase(Random& random, DType type, bool is_adamw, int64_t size)
      : type(type),
        is_adamw(is_adamw),
        size(size),
        weight(normals(random, DType::kFloat32, size)),
        gradient(normals(random, DType::kFloat32, size)),
        momentum(normals(random, type, size)),
        variance(normals(random, DType::kFloat32, is_adamw ? size : 0)),
        scalars({0.375, 0.0625, 0.25, 0.03125}) {
    for (double& x : variance) x = fabs(x);
    scalars.resize(is_adamw ? 4 : 2);
  }
};

struct UpdateRun : Run {
  const UpdateCase& c;
  Tensor weight, gradient, momentum, variance, scalars, new_weight, new_momentum, new_variance;
  static constexpr float kBeta1 = 0.875f, kBeta2 = 0.96875f, kEpsilon = 0.125f, kDecay = 0.5f;

  UpdateRun(const UpdateCase& c, int shift)
      : c(c),
        weight(DType::kFloat32, c.weight, shift),
        gradient(DType::kFloat32, c.gradient, shift),
        momentum(c.type, c.momentum, shift),
        variance(DType::kFloat32, c.variance, shift),
        scalars(DType::kFloat32, c.scalars, shift),
        new_weight(DType::kFloat32, c.size, Tensor::kOutput, shift),
        new_momentum(c.type, c.size, Tensor::kOutput, shift),
        new_variance(DType::kFloat32, variance.count(), Tensor::kOutput, shift) {
    inputs = {&weight, &gradient, &momentum, &variance, &scalars};
    results = {&new_weight, &new_momentum, &new_variance};
  }
  vit::Result call(const vit::Execution& execution) override {
    vit::UpdateProblem problem = {};
    problem.momentum_type = c.type;
    problem.is_adamw = c.is_adamw;
    problem.size = c.size;
    problem.weight = NormRun::floats(weight);
    problem.gradient = NormRun::floats(gradient);
    problem.momentum = momentum.data();
    problem.variance = c.is_adamw ? NormRun::floats(variance) : nullptr;
    problem.scalars = NormRun::floats(scalars);
    problem.beta_1 = kBeta1;
    problem.rest_1 = c.is_adamw ? 1 - kBeta1 : 1;
    problem.beta_2 = kBeta2;
    problem.rest_2 = 1 - kBeta2;
    problem.epsilon = kEpsilon;
    problem.decay = kDecay;
    problem.new_weight = NormRun::floats(new_weight);
    problem.new_momentum = new_momentum.data();
    problem.new_variance = c.is_adamw ? NormRun::floats(new_variance) : nullptr;
    return update(problem, execution);
  }
  void expect() {
    const double u = unit(DType::kFloat32), beta_1 = double{kBeta1}, beta_2 = double{kBeta2};
    Expected weights(c.size), moments(c.size), variances(variance.count());
    for (int64_t i = 0; i < c.size; ++i) {
      const double g = at(c.gradient, i) * at(c.scalars, 0), w = at(c.weight, i);
      const double m = beta_1 * at(c.momentum, i) + (c.is_adamw ? 1 - beta_1 : 1) * g;
      const double m_error = 3 * u * (fabs(at(c.momentum, i)) + fabs(g));
      double direction = m, error = m_error;
      if (c.is_adamw) {
        const double v = beta_2 * at(c.variance, i) + (1 - beta_2) * g * g;
        variances.set(i, v, 4 * u * v);
        const double root = sqrt(v / at(c.scalars, 3)) + double{kEpsilon};
        direction = m / at(c.scalars, 2) / root;
        error = m_error / at(c.scalars, 2) / root + 8 * u * fabs(direction);
      }
      moments.set(i, m, m_error);
      direction += double{kDecay} * w;
      weights.set(i, w - at(c.scalars, 1) * direction, error + 4 * u * (fabs(w) + fabs(direction)));
    }
    expect_near("new_weight", new_weight, weights);
    expect_near("new_momentum", new_momentum, moments);
    expect_near("new_variance", new_variance, variances);
    expect_intact();
  }
};

// Around the widths of vectors and of groups of rows, and more rows than groups.
constexpr int64_t kSizes[][2] = {{1, 1},   {3, 5},    {16, 16},  {17, 33},
                                 {40, 96}, {33, 130}, {4500, 3}, {300, 64}};

// Calls body(run, another run of the same case) for every kernel, type and size.
template <class Body>
void for_each_case(const Body& body) {
  int turn = 0;
  for (const auto& size : kSizes) {
    const int64_t rows = size[0], width = size[1];
    for (DType type : kRowTypes) {
      for (bool second : {false, true}) {
        Random random(static_cast<uint64_t>(++turn));
        const char* kind = second ? "erf, branch, AdamW" : "tanh, no branch, SGD";
        const auto say = [&](const char* what) {
          testing("%s (%s): %s, %s, %lld x %lld", what, kind, isa(), name(type), number(rows),
                  number(width));
        };
        const int shift = turn % 5;
        const GeluCase gelu(random, type, second, rows, width);
        GeluRun gelu_run(gelu, shift), other_gelu(gelu, shift);
        const NormCase norm(random, type, second, rows, width);
        NormRun norm_run(norm, shift), other_norm(norm, shift);
        const DType momentum = type == DType::kFloat16 ? DType::kFloat32 : type;
        const UpdateCase update(random, momentum, second, rows * width);
        UpdateRun update_run(update, shift), other_update(update, shift);
        for_each_isa([&] {
          say("bias and GELU");
          body(gelu_run, other_gelu);
          say("LayerNorm");
          body(norm_run, other_norm);
          say("update");
          body(update_run, other_update);
        });
      }
    }
  }
}

void test_sizes() {
  for_each_case([](auto& run, auto&) {
    run.all(vit::serial());
    run.expect();
  });
}

void test_threads() {
  uint64_t seed = 0;
  for_each_case([&](auto& run, auto& other) { expect_same_on_threads(run, other, seed); });
}

void test_out_of_memory() {
  Random random(3);
  const GeluCase gelu(random, DType::kFloat32, false, 20, 33);
  const NormCase norm(random, DType::kBfloat16, true, 20, 33);
  GeluRun gelu_run(gelu, 0);
  NormRun norm_run(norm, 0);
  for_each_isa([&] {
    testing("no memory: %s", isa());
    for (Run* run : std::initializer_list<Run*>{&gelu_run, &norm_run}) {
      scratch_use().refuse = true;
      const vit::Result result = run->call(execution(vit::serial()));
      scratch_use().refuse = false;
      EXPECT(result == vit::Result::kOutOfMemory, "a kernel does not report it");
      run->expect_intact();
    }
  });
}

// NaN reaches its row alone, and its column of the sums; GELU of the largest and smallest numbers,
// and their slopes, are exact.
void test_not_finite() {
  for (bool exact : {false, true}) {
    Random random(4);
    GeluCase gelu(random, DType::kFloat32, exact, 4, 21);
    for (double& x : gelu.bias) x = 0;
    gelu.x[7] = NAN;
    const double numbers[] = {HUGE_VAL, 3e38, 1e4, -1e4, -3e38};
    for (int i = 0; i < 5; ++i) gelu.x[static_cast<size_t>(21 + i)] = numbers[i];
    for (double& x : gelu.d_out) x = 1;
    GeluRun run(gelu, 1);
    for_each_isa([&] {
      testing("not finite: %s, exact %d", isa(), exact);
      run.all(vit::serial());
      EXPECT(isnan(run.out.at(7)) && isnan(run.d_x.at(7)) && isnan(run.d_bias.at(7)), "no NaN");
      int64_t numbers_not_finite = 0;
      for (int64_t i = 0; i < run.x.count(); ++i) numbers_not_finite += !isfinite(run.d_x.at(i));
      EXPECT(numbers_not_finite == 1, "%lld slopes are not finite", number(numbers_not_finite));
      for (int64_t i = 21; i < 24; ++i) {
        EXPECT(run.out.at(i) == run.x.at(i) && fabs(run.d_x.at(i) - 1) < 1e-6,
               "GELU of %g is %g, its slope %g", run.x.at(i), run.out.at(i), run.d_x.at(i));
      }
      for (int64_t i = 24; i < 26; ++i) {
        EXPECT(run.out.at(i) == 0 && fabs(run.d_x.at(i)) < 1e-30, "GELU of %g is %g, its slope %g",
               run.x.at(i), run.out.at(i), run.d_x.at(i));
      }
    });
  }
  for (double poison : {double{NAN}, HUGE_VAL}) {
    Random random(5);
    NormCase norm(random, DType::kFloat32, true, 4, 21);
    norm.branch[21 * 2 + 3] = poison;
    NormRun run(norm, 1);
    for_each_isa([&] {
      testing("not finite: LayerNorm, %s", isa());
      run.all(vit::serial());
      for (int64_t i = 0; i < run.x.count(); ++i) {
        EXPECT(isfinite(run.normalized.at(i)) == (i / 21 != 2), "normalized[%lld] is %g", number(i),
               run.normalized.at(i));
        EXPECT(isfinite(run.d_x.at(i)) == (i / 21 != 2), "d_x[%lld] is %g", number(i),
               run.d_x.at(i));
      }
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "out_of_memory")) test_out_of_memory();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  return finish();
}
