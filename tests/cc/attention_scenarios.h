// Scenarios of attention for a Device: Cpu of devices.h or Gpu of gpu_scratch.h. The emulation of a
// GPU takes 100 times as long as a CPU, so each scenario leaves out some of its cases there.
#ifndef TESTS_CC_ATTENTION_SCENARIOS_H_
#define TESTS_CC_ATTENTION_SCENARIOS_H_

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "tests/cc/attention_run.h"
#include "tests/cc/devices.h"

namespace vit_test {

using vit::DType;

enum class Parts { kForwardAndTaps, kAll };

// Compares a case with the oracle, and on a GPU both orders of warps and blocks.
template <class Device>
void compare(const AttentionCase& problem, const char* what, int shift, Parts parts = Parts::kAll) {
  const AttentionExpected expected = AttentionOracle(problem, Device::kIsGpu).run();
  AttentionRun run(problem, shift), reversed(problem, shift);
  const auto compute = [&](AttentionRun& each) {
    parts == Parts::kAll ? each.all(Device::where()) : each.forward_and_taps(Device::where());
  };
  Device::for_each([&] {
    const vit::AttentionShape& s = problem.shape;
    testing(
        "%s: %s %s, batch %lld, %lld lines of %lld tokens, %lld heads of %lld, scale %g, shift %d",
        what, Device::name(), name(problem.type), number(s.batch), number(s.lines),
        number(s.tokens), number(s.heads), number(s.head_size), problem.scale(), shift);
    compute(run);
    parts == Parts::kAll ? run.expect(expected) : run.expect_forward(expected);
    Device::in_reverse([&] {
      compute(reversed);
      reversed.expect_same(run);
    });
  });
}

// Adds a grid for the distance if the case has taps.
inline void set_grid(AttentionCase& problem, int64_t columns) {
  if (!problem.has_taps() || !problem.shape.tokens) return;
  problem.columns = std::min(columns, problem.shape.tokens);
  problem.rows = problem.shape.tokens / problem.columns;
}

// Whether 70 tokens, more than a tile, take too long.
template <class Device>
bool is_too_long(int64_t tokens, DType type) {
  return Device::kIsGpu && tokens > 64 && vit::size_of(type) > 2;
}

// Scales other than the default, with a bias and without.
template <class Device>
void test_scale() {
  int turn = 0;
  for (double scale : {0x1p-40, 0.02, 0.3, 1.0, 2.3}) {
    for (int64_t tokens : {5, 37, 197}) {
      // With many equal weights the entropy of a CPU has more rounding errors than the oracle
      // allows.
      if (Device::kIsGpu ? tokens != 37 : scale < 0.01) continue;
      for (DType type : Device::kTypes) {
        Random random(static_cast<uint64_t>(++turn));
        const int64_t size = Device::kIsGpu ? 16 : turn % 2 ? 20 : 5;
        AttentionCase problem = make(random, type, shape_of(turn % 3, 2, tokens, 2, size));
        problem.explicit_scale = scale;
        if (turn % 5 % 2) {
          shape_bias(problem, 3);
          fill_bias(random, problem);
        }
        set_grid(problem, 6);
        compare<Device>(problem, "scale", turn % 2);
      }
    }
  }
}

// Every set of dimensions that a bias can be broadcast over, and several orders in memory.
template <class Device>
void test_bias() {
  for (int axis = 0; axis < 3; ++axis) {
    for (int mask = 0; mask < 32; ++mask) {
      const int types = static_cast<int>(std::size(Device::kTypes));
      for (int t = 0; t < types; ++t) {
        if (Device::kIsGpu && (axis != mask % 3 || t != (mask + mask / 4 + mask / 16) % types)) {
          continue;
        }
        Random random(static_cast<uint64_t>(100 * axis + mask));
        const int64_t size = Device::kIsGpu ? 8 : mask % 3 ? 6 : 5;
        AttentionCase problem = make(random, Device::kTypes[t], shape_of(axis, 2, 19, 2, size));
        std::vector<int> order = {0, 1, 2, 3, 4};
        if (mask % 4 == 3) std::swap(order[0], order[1 + static_cast<size_t>(axis)]);
        shape_bias(problem, mask, order);
        fill_bias(random, problem);
        set_grid(problem, 3);
        compare<Device>(problem, "bias", mask % 3);
      }
    }
  }
}

// Lines without keys: exact zeros, whatever their tokens are.
template <class Device>
void test_closed_lines() {
  for (DType type : Device::kTypes) {
    for (int mask : {0, 1, 2, 3, 8, 31}) {
      if (Device::kIsGpu && mask != 1 && mask != 3) continue;
      Random random(5);
      AttentionCase problem =
          make(random, type, vit::sequence_shape(2, 21, 2, Device::kIsGpu ? 8 : 6));
      shape_bias(problem, mask);
      std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
      set_grid(problem, 5);
      compare<Device>(problem, "closed lines", 0);
      AttentionRun run(problem, 0);
      for (int64_t i = 0; i < run.qkv.count(); i += 7) run.qkv.set(i, i % 2 ? NAN : HUGE_VAL);
      Device::for_each([&] {
        testing("closed lines of NaN: %s %s, mask %d", Device::name(), name(type), mask);
        run.out.forget();
        run.forward(Device::where());
        for (int64_t i = 0; i < run.out.count(); ++i) EXPECT(run.out.at(i) == 0, "out is not 0");
      });
    }
  }
}

// Closes some queries of a line: their q and d_out must have no effect.
template <class Device>
void test_closed_rows() {
  for (DType type : Device::kTypes) {
    for (const std::pair<int64_t, int64_t>& line :
         {std::pair{37, 5}, {37, 16}, {37, 20}, {70, 16}}) {
      const int64_t tokens = line.first, size = line.second;
      if (is_too_long<Device>(tokens, type) || (Device::kIsGpu && size != 16)) continue;
      Random random(6);
      AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
      shape_bias(problem, 3);
      set_grid(problem, 6);
      const std::initializer_list<int64_t> closed = {0, 3, tokens - 2, tokens - 1};
      for (int64_t i : closed) std::fill_n(problem.bias.begin() + i * tokens, tokens, -HUGE_VAL);
      compare<Device>(problem, "closed rows among others", Device::kShift);
      for (double poison : {double{NAN}, HUGE_VAL}) {
        AttentionRun before(problem, 1), after(problem, 1);
        for (int64_t i : closed) {
          for (int64_t c = 0; c < size; ++c) {
            after.qkv.set(3 * i * size + c, poison);
            after.d_out.set(i * size + c, poison);
          }
        }
        Device::for_each([&] {
          testing("closed rows with %g: %s %s, %lld tokens, heads of %lld", poison, Device::name(),
                  name(type), number(tokens), number(size));
          before.all(Device::where());
          after.all(Device::where());
          after.expect_same(before);
        });
      }
    }
  }
}

template <class Device>
void test_no_elements() {
  for (int axis = 0; axis < 3; ++axis) {
    for (DType type : Device::kTypes) {
      for (const auto& [batch, tokens] : {std::pair{0, 0}, {0, 5}, {2, 0}}) {
        for (int mask : {-1, 0, 4, 16}) {
          Random random(1);
          AttentionCase problem = make(random, type, shape_of(axis, batch, tokens, 2, 8));
          if (mask >= 0) shape_bias(problem, mask);
          compare<Device>(problem, "no elements", mask >= 0);
        }
      }
    }
  }
}

// With a single key its weight is 1: the output is v, and only v has a gradient.
template <class Device>
void test_one_key(const AttentionCase& problem) {
  const int64_t tokens = problem.shape.tokens, size = problem.shape.head_size;
  const int64_t width = problem.width(), key = tokens / 2;
  AttentionRun run(problem, Device::kShift);
  Device::for_each([&] {
    testing("one key of %lld: %s %s, heads of %lld", number(tokens), Device::name(),
            name(problem.type), number(size));
    run.all(Device::where());
    for (int64_t i = 0; i < tokens * width; ++i) {
      const int64_t at = i / width * 3 * width + i % width;
      const double value = run.qkv.at((3 * key + 2) * width + i % width);
      EXPECT(run.out.at(i) == value, "out is %.9g, not %.9g", run.out.at(i), value);
      EXPECT(run.d_qkv.at(at) == 0 && run.d_qkv.at(at + width) == 0,
             "the gradients of q and k are %g and %g", run.d_qkv.at(at), run.d_qkv.at(at + width));
    }
    for (int64_t i = 0; i < run.d_bias.count(); ++i) {
      EXPECT(run.d_bias.at(i) == 0, "the gradient of the bias is %g", run.d_bias.at(i));
    }
    for (int64_t i = 0; i < run.entropy.count(); ++i) {
      EXPECT(run.entropy.at(i) == 0, "the entropy is %g", run.entropy.at(i));
    }
    run.expect_row_sums();
    run.expect_gradient_sums();
  });
}

template <class Device>
void test_one_key() {
  for (DType type : Device::kTypes) {
    for (int64_t tokens : {1, 23, 70}) {
      for (int64_t size : {1, 5, 64, 80, 128, 300}) {
        for (double scale : {1.0, 3.0, 100.0}) {
          if (Device::kIsGpu && tokens > 1 && (scale > 1 || size == 80 || size > 128)) continue;
          Random random(8);
          AttentionCase problem = make(
              random, type, vit::sequence_shape(1, tokens, Device::kIsGpu ? 1 : 2, size), scale);
          if (tokens > 1) {
            shape_bias(problem, 1);
            std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
            problem.bias[static_cast<size_t>(tokens / 2)] = 1;
          }
          test_one_key<Device>(problem);
        }
      }
    }
  }
}

// Logits of about 1e3, 1e4, 1e6, 1e8 and 1e20, whose weights depend on the last bits of their sums.
template <class Device>
void test_large_logits() {
  for (DType type : Device::kTypes) {
    for (double scale : {30.0, 100.0, 1e3, 1e4, 1e10}) {
      // The gradients of others are infinite.
      const bool has_gradients = type != DType::kFloat16 || scale <= 100;
      if (!has_gradients && scale > 1e4) continue;
      for (const auto& [tokens, size] : {std::pair{37, 3}, {37, 40}, {37, 64}, {70, 40}}) {
        if (is_too_long<Device>(tokens, type) || (Device::kIsGpu && size != 40)) continue;
        Random random(9);
        const AttentionCase problem =
            make(random, type, vit::sequence_shape(1, tokens, 2, size), scale);
        compare<Device>(problem, "large logits", 2 * Device::kShift,
                        has_gradients ? Parts::kAll : Parts::kForwardAndTaps);
      }
    }
    // One key has the whole weight: the exponentials of all other keys underflow.
    Random random(10);
    AttentionCase problem = make(random, type, vit::sequence_shape(1, 23, 1, 4));
    shape_bias(problem, 1);
    for (double& x : problem.bias) x = -1e4;
    problem.bias[11] = 1e4;
    compare<Device>(problem, "the whole weight", 0);
  }
}

// Whether an element of a result depends on an element that is not finite. kNever: it keeps its
// bits. kAlways: it is not finite either. kMaybe: both are allowed.
enum Reach { kNever, kAlways, kMaybe };

// reach(row, column) returns the Reach of rows of `head`; for other heads it is kNever.
template <class ReachOf>
void expect_reached(const char* what, const Tensor& before, const Tensor& after, int64_t heads,
                    int64_t size, int64_t head, const ReachOf& reach) {
  for (int64_t i = 0; i < before.count(); ++i) {
    const bool same_head = i / size % heads == head;
    const Reach expected = same_head ? reach(i / size / heads, i % size) : kNever;
    if (expected == kAlways) {
      EXPECT(!isfinite(after.at(i)), "%s[%lld] stays finite: %g", what, number(i), after.at(i));
    } else if (expected == kNever) {
      EXPECT(after.at(i) == before.at(i), "%s[%lld] changes from %g to %g", what, number(i),
             before.at(i), after.at(i));
    }
  }
}

// NaN and Inf change the elements that depend on them and no others: no other lane of a vector, no
// other head, and not the other number of a pair.
template <class Device>
void test_not_finite() {
  const int64_t tokens = 37, heads = 2, token = 20, head = 1, column = 3;
  enum Part { kQuery, kKey, kValue, kDOut };
  const char* names[] = {"q", "k", "v", "d_out"};
  const auto when = [](bool condition) { return condition ? kAlways : kNever; };
  for (int64_t size : {5, 8, 20}) {
    if (Device::kIsGpu != (size == 8)) continue;
    for (DType type : Device::kTypes) {
      Random random(11);
      const AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, heads, size));
      Device::for_each([&] {
        AttentionRun before(problem, Device::kShift);
        before.all(Device::where());
        for (int turn = 0; turn < 8; ++turn) {
          const int part = turn % 4;
          const double poison = turn < 4 ? double{NAN} : HUGE_VAL;
          testing("%g in %s: %s %s, heads of %lld", poison, names[part], Device::name(), name(type),
                  number(size));
          AttentionRun after(problem, Device::kShift);
          const int64_t at = head * size + column;
          if (part == kDOut) {
            after.d_out.set(token * heads * size + at, poison);
          } else {
            after.qkv.set((token * 3 + part) * heads * size + at, poison);
          }
          after.all(Device::where());
          // A logit of -Inf closes a key, a logit of +Inf gives NaN; which one depends on the sign
          // of q.
          const bool by_chance = part == kKey && isinf(poison);
          expect_reached("out", before.out, after.out, heads, size, head,
                         [&](int64_t row, int64_t c) {
                           if (by_chance) return kMaybe;
                           if (part == kQuery) return when(row == token);
                           return part == kValue ? when(c == column) : when(part == kKey);
                         });
          // Rows of d_qkv are the q, k and v rows of each token, in this order.
          expect_reached("d_qkv", before.d_qkv, after.d_qkv, heads, size, head,
                         [&](int64_t row, int64_t c) {
                           const int64_t of = row % 3;
                           if (by_chance) return kMaybe;
                           if (of == kQuery && (part == kQuery || part == kDOut)) {
                             return when(row / 3 == token);
                           }
                           if (of == kValue && part == kValue) return kNever;
                           if (of == kValue && part == kDOut) return when(c == column);
                           return kAlways;
                         });
        }
      });
    }
  }
}

// An infinite k closes its key for queries of the other sign. This also holds if the last element
// of a pair is no query or no key, where logits are 0 * Inf, and next to rows and columns of a tile
// that do not exist.
template <class Device>
void test_infinite_key() {
  const int64_t column = 1;  // of the infinite element
  for (int64_t tokens : {4, 5, 17, 18, 37, 70}) {
    for (int64_t size : {3, 8}) {
      for (DType type : Device::kTypes) {
        const bool is_even = tokens % 2 == 0 && tokens < 64;
        if (is_too_long<Device>(tokens, type) || (Device::kIsGpu && (size == 3 || is_even))) {
          continue;
        }
        for (double sign : {-1.0, 1.0}) {
          const AttentionCase problem = infinite_key(type, tokens, size, sign);
          AttentionRun run(problem, Device::kShift);
          Device::for_each([&] {
            testing("infinite key, q of sign %g: %s %s, %lld tokens, heads of %lld", sign,
                    Device::name(), name(type), number(tokens), number(size));
            run.all(Device::where());
            for (int64_t i = 0; i < run.out.count(); ++i) {
              EXPECT(isnan(run.out.at(i)) == (sign > 0), "out[%lld] is %g", number(i),
                     run.out.at(i));
            }
            // The weight of the key is 0, but the gradient of q contains 0 * Inf.
            for (int64_t i = 0; i < run.d_qkv.count(); ++i) {
              const bool of_q = i / size % 3 == 0 && i % size == column;
              EXPECT(isfinite(run.d_qkv.at(i)) == (sign < 0 && !of_q), "d_qkv[%lld] is %g",
                     number(i), run.d_qkv.at(i));
            }
          });
        }
      }
    }
  }
}

}  // namespace vit_test

#endif  // TESTS_CC_ATTENTION_SCENARIOS_H_
