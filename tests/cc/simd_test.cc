// Tests the vector functions of the kernels, for every instruction set: conversions bit by bit,
// exponentials and logarithms against the C library in a higher precision.
#include <float.h>

#include <limits>
#include <vector>

#include "custom_ops/cpu/dispatch.h"
#include "tests/cc/memory.h"
#include "tests/cc/simd_isa.h"

namespace {

using namespace vit_test;

SimdFunctions functions() { return vit::table_of_current_isa<SimdFunctions>(vit::Isa::kAmx); }

template <class To, class From>
To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To result;
  memcpy(&result, &x, sizeof x);
  return result;
}

template <class T>
void fill_up(std::vector<T>& x) {
  while (x.size() % 16) x.push_back(T{});
}

// Converts all 16-bit numbers to float and back.
void test_small_formats() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const SimdFunctions f = functions();
  const struct {
    const char* name;
    Format format;
    void (*load)(const uint16_t*, float*, int64_t);
    void (*store)(const float*, uint16_t*, int64_t);
  } ways[] = {{"bfloat16", kBfloat, f.load_bfloat16, f.store_bfloat16},
              {"bfloat16, one by one", kBfloat, f.load_bfloat16_one, f.store_bfloat16_one},
              {"float16", kHalf, f.load_float16, f.store_float16},
              {"float16, one by one", kHalf, f.load_float16_one, f.store_float16_one}};
  for (const auto& way : ways) {
    testing("every %s: %s", way.name, isa());
    std::vector<float> numbers(all.size());
    std::vector<uint16_t> back(all.size());
    way.load(all.data(), numbers.data(), 65536);
    way.store(numbers.data(), back.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      const double want = decode(way.format, all[i]);
      if (isnan(want)) {
        EXPECT(isnan(numbers[i]) && isnan(decode(way.format, back[i])), "%04zx is not NaN", i);
        EXPECT((back[i] & 0x8000) == (all[i] & 0x8000), "%04zx loses its sign", i);
      } else {
        EXPECT(bits_of<uint32_t>(numbers[i]) == bits_of<uint32_t>(static_cast<float>(want)),
               "%04zx is read as %g", i, static_cast<double>(numbers[i]));
        EXPECT(back[i] == all[i], "%04zx comes back as %04x", i, back[i]);
      }
    }
  }
}

// Floats around every 16-bit number, half-way between neighbours, and special values.
std::vector<float> hard_floats(Format format) {
  std::vector<float> result;
  for (uint32_t i = 0; i < 0x7fffu; ++i) {
    const double low = decode(format, static_cast<uint16_t>(i));
    const double high = decode(format, static_cast<uint16_t>(i + 1));
    if (isnan(low)) break;
    const double next = isinf(high) ? 2 * low - decode(format, static_cast<uint16_t>(i - 1)) : high;
    for (double x : {low, isinf(low) ? low : (low + next) / 2}) {
      const float middle = static_cast<float>(x);
      for (float y : {nextafterf(middle, -HUGE_VALF), middle, nextafterf(middle, HUGE_VALF)}) {
        result.push_back(y);
        result.push_back(-y);
      }
    }
  }
  Random random(1);
  for (int i = 0; i < 300000; ++i) {
    result.push_back(bits_of<float>(static_cast<uint32_t>(random.bits())));
  }
  for (uint32_t bits : {0x7f800000u, 0x7f800001u, 0x7fffffffu, 0xff800001u, 0x7f7fffffu, 1u}) {
    result.push_back(bits_of<float>(bits));
  }
  fill_up(result);
  return result;
}

void test_rounding() {
  const SimdFunctions f = functions();
  const struct {
    const char* name;
    Format format;
    void (*store)(const float*, uint16_t*, int64_t);
    bool flushes;  // whether subnormal floats become 0
  } ways[] = {{"bfloat16", kBfloat, f.store_bfloat16, false},
              {"bfloat16, one by one", kBfloat, f.store_bfloat16_one, false},
              {"float16", kHalf, f.store_float16, false},
              {"float16, one by one", kHalf, f.store_float16_one, false},
              {"bfloat16 by one instruction", kBfloat, f.store_rounded, true}};
  for (const auto& way : ways) {
    if (!way.store) continue;
    testing("rounding to %s: %s", way.name, isa());
    const std::vector<float> numbers = hard_floats(way.format);
    std::vector<uint16_t> result(numbers.size());
    way.store(numbers.data(), result.data(), static_cast<int64_t>(numbers.size()));
    for (size_t i = 0; i < numbers.size(); ++i) {
      double x = static_cast<double>(numbers[i]);
      if (way.flushes && fabs(x) < 0x1p-126) x = copysign(0.0, x);
      const uint16_t want = encode(way.format, x);
      const bool right = isnan(x) ? isnan(decode(way.format, result[i])) : result[i] == want;
      EXPECT(right, "%a becomes %04x, not %04x", x, result[i], want);
    }
  }
  if (!f.store_pairs) return;
  testing("pairs: %s", isa());
  float low[16], high[16];
  uint16_t pairs[32];
  for (int i = 0; i < 16; ++i) {
    low[i] = static_cast<float>(i) + 0.123f;
    high[i] = static_cast<float>(-i) - 0.321f;
  }
  f.store_pairs(low, high, pairs);
  for (int i = 0; i < 16; ++i) {
    EXPECT(pairs[2 * i] == encode(kBfloat, static_cast<double>(low[i])), "wrong low half %d", i);
    EXPECT(pairs[2 * i + 1] == encode(kBfloat, static_cast<double>(high[i])), "wrong high half %d",
           i);
  }
}

// The error in units of the last place of `want`, which is normal.
template <class T, class Wide>
double units_off(T got, Wide want) {
  const int digits = sizeof(T) == 4 ? 24 : 53;
  int exponent;
  frexp(static_cast<double>(want), &exponent);
  return fabs(static_cast<double>((static_cast<Wide>(got) - want))) / ldexp(1.0, exponent - digits);
}

template <class T, class Wide>
void test_exp2(void (*exp2_of)(const T*, T*, int64_t), Wide (*exact)(Wide), T lowest, T highest) {
  testing("exp2 of %s: %s", sizeof(T) == 4 ? "float" : "double", isa());
  std::vector<T> x;
  Random random(2);
  for (int i = 0; i < 200000; ++i) {
    x.push_back(static_cast<T>(random.uniform()) * (highest - lowest) + lowest);
    x.push_back(static_cast<T>(random.normal()));
    x.push_back(static_cast<T>(random.normal() * 1e-6));
  }
  // Integers and points half-way between them, where the rounding changes.
  for (T i = lowest; i < highest; i += T(0.5)) {
    for (T y : {std::nextafter(i, lowest), i, std::nextafter(i, highest)}) {
      if (y >= lowest) x.push_back(y);
    }
  }
  fill_up(x);
  std::vector<T> result(x.size());
  exp2_of(x.data(), result.data(), static_cast<int64_t>(x.size()));
  // Without FMA the products of the polynomial are rounded too.
  const double most = vit::current_isa() == vit::Isa::kBaseline ? 1.5 : 1;
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double off = units_off(result[i], exact(static_cast<Wide>(x[i])));
    worst = off > worst ? off : worst;
    EXPECT(off <= most, "2^%.17g is off by %g units", static_cast<double>(x[i]), off);
  }
  printf("%s: at most %.3f units of the last place off\n", state().now.c_str(), worst);

  const T infinity = static_cast<T>(HUGE_VAL);
  T low[16] = {-infinity,   lowest - T(0.25),
               lowest - 1,  lowest - T(1.5),
               lowest - 10, lowest - 25,
               lowest - 60, -T(1e4),
               -T(1e9),     -std::numeric_limits<T>::max(),
               -T(0),       T(0)};
  T of_low[16];
  for (int i = 12; i < 16; ++i) low[i] = static_cast<T>(i % 2 ? NAN : -NAN);
  exp2_of(low, of_low, 16);
  EXPECT(of_low[0] == 0, "2^-Inf is %g", static_cast<double>(of_low[0]));
  for (int i = 1; i < 10; ++i) {
    const T least = std::numeric_limits<T>::denorm_min();
    const T most = fmax(static_cast<T>(exact(static_cast<Wide>(low[i]))) * T(1.001), least);
    EXPECT(of_low[i] >= 0 && of_low[i] <= most, "2^%g is %g", static_cast<double>(low[i]),
           static_cast<double>(of_low[i]));
  }
  EXPECT(of_low[10] == 1 && of_low[11] == 1, "2^0 is not 1");
  for (int i = 12; i < 16; ++i) EXPECT(isnan(of_low[i]), "2^NaN is a number");
}

template <class T, class Wide>
void test_log2(void (*log2_of)(const T*, T*, int64_t), Wide (*exact)(Wide)) {
  testing("log2 of %s: %s", sizeof(T) == 4 ? "float" : "double", isa());
  const int range = sizeof(T) == 4 ? 126 : 1022;
  std::vector<T> x;
  Random random(3);
  for (int i = 0; i < 200000; ++i) {
    const int exponent = static_cast<int>(random.below(2 * range)) - range;
    x.push_back(static_cast<T>(ldexp(1 + random.uniform(), exponent)));
    x.push_back(static_cast<T>(1 + 4095 * random.uniform()));
    x.push_back(static_cast<T>(1 + random.normal() * 1e-4));
  }
  for (int i = -range; i <= range; ++i) {
    const T power = static_cast<T>(ldexp(1.0, i)), root = power * static_cast<T>(M_SQRT1_2);
    for (T y : {power, std::nextafter(power, T(0)), std::nextafter(power, 2 * power), root,
                std::nextafter(root, T(0)), std::nextafter(root, 2 * root)}) {
      if (y >= std::numeric_limits<T>::min()) x.push_back(y);
    }
  }
  while (x.size() % 16) x.push_back(T(1));
  std::vector<T> result(x.size());
  log2_of(x.data(), result.data(), static_cast<int64_t>(x.size()));
  const double unit = sizeof(T) == 4 ? 0x1p-24 : 0x1p-53;
  for (size_t i = 0; i < x.size(); ++i) {
    const Wide want = exact(static_cast<Wide>(x[i]));
    const double error = fabs(static_cast<double>(static_cast<Wide>(result[i]) - want));
    // Two units of the last place, or the unit of 1 if that is larger.
    EXPECT(error <= fmax(unit, 4 * unit * fabs(static_cast<double>(want))),
           "log2(%a) = %a is off by %g", static_cast<double>(x[i]), static_cast<double>(result[i]),
           error);
  }
}

// Floats of all magnitudes and signs, and as many of the usual size.
std::vector<float> usual_floats() {
  std::vector<float> x;
  Random random(4);
  for (int i = 0; i < 30000; ++i) {
    const float any = bits_of<float>(static_cast<uint32_t>(random.bits()));
    x.push_back(isfinite(any) ? any : 1);
    x.push_back(static_cast<float>(3 * random.normal()));
    x.push_back(static_cast<float>(random.uniform() * 32 - 16));
  }
  for (float y : {0.0f, -0.0f, FLT_MIN, -FLT_MIN, FLT_MAX, -FLT_MAX}) x.push_back(y);
  fill_up(x);
  return x;
}

void test_reciprocal() {
  testing("reciprocal: %s", isa());
  std::vector<float> x = usual_floats();
  for (float& y : x) {
    if (!(fabsf(y) >= FLT_MIN && fabsf(y) <= 1 / FLT_MIN)) y = 1;
  }
  std::vector<float> result(x.size());
  functions().reciprocal(x.data(), result.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double off = units_off(result[i], 1 / static_cast<double>(x[i]));
    EXPECT(off <= 2, "1 / %a is off by %g units", static_cast<double>(x[i]), off);
  }
}

double exact_gelu_tanh(double x) {
  const long double wide = static_cast<long double>(x);
  const long double factor = 0.797884560802865355879892119868763737L;  // sqrt(2 / pi)
  return static_cast<double>(wide /
                             (1 + expl(-2 * factor * (wide + 0.044715L * wide * wide * wide))));
}

double exact_gelu_erf(double x) {
  const long double wide = static_cast<long double>(x);
  return static_cast<double>(0.5L * wide * erfcl(-wide * 0.707106781186547524400844362104849039L));
}

double exact_silu(double x) {
  const long double wide = static_cast<long double>(x);
  return static_cast<double>(wide / (1 + expl(-wide)));
}

// Far below 0 the result is x times a power, whose relative error is the error of its exponent: a
// few roundings of it; where it is 0 it has the sign of x. Infinity gives infinity; minus infinity
// and NaN give NaN.
void test_activation(const char* what, void (*function)(const float*, float*, int64_t),
                     double (*exact)(double)) {
  testing("%s: %s", what, isa());
  const std::vector<float> x = usual_floats();
  std::vector<float> result(x.size());
  function(x.data(), result.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double from = static_cast<double>(x[i]), got = static_cast<double>(result[i]);
    const double want = exact(from), exponent = want == 0 ? 0 : log(from / want);
    const double growth = 8 + 3 * exponent;
    const double most = 0x1p-24 * growth * fabs(want) + 0x1p-119;
    EXPECT(fabs(got - want) <= most, "of %a it is %g, not %g", from, got, want);
    if (fabs(want) > 1e-30) worst = fmax(worst, fabs(got - want) / fabs(want) / growth * 0x1p24);
  }
  printf("%s: at most %.3f of the bound\n", state().now.c_str(), worst);
  const float special[16] = {HUGE_VALF, FLT_MAX, -HUGE_VALF, NAN, -NAN, -100.0f, -FLT_MAX};
  float of_special[16];
  function(special, of_special, 16);
  for (int i = 0; i < 7; ++i) {
    const float x = special[i], got = of_special[i];
    const bool zero = bits_of<uint32_t>(got) == bits_of<uint32_t>(-0.0f);
    const bool right = i < 2 ? got == x : i < 5 ? isnan(got) : zero;
    EXPECT(right, "of %g it is %g", static_cast<double>(x), static_cast<double>(got));
  }
}

// Reads and writes exactly `count` elements.
template <class T>
void test_first(vit::DType type, void (*copy)(const T*, T*, int64_t), int lanes) {
  for (int count = 0; count <= lanes; ++count) {
    testing("the first %d of %s: %s", count, name(type), isa());
    std::vector<double> numbers;
    for (int i = 0; i < count; ++i) numbers.push_back(1.5 + i);
    Tensor from(type, numbers, 1), to(type, count, Tensor::kOutput, 1);
    copy(static_cast<const T*>(from.data()), static_cast<T*>(to.data()), count);
    for (int i = 0; i < count; ++i) EXPECT(to.at(i) == 1.5 + i, "[%d] is %g", i, to.at(i));
    EXPECT(from.intact() && to.intact(), "memory outside of the tensor was written");
  }
}

template <class T>
void test_lanes(void (*transpose)(T*), T (*add)(const T*), int lanes) {
  testing("lanes of %s: %s", sizeof(T) == 4 ? "float" : "double", isa());
  std::vector<T> square(static_cast<size_t>(lanes * lanes));
  for (size_t i = 0; i < square.size(); ++i) square[i] = static_cast<T>(i);
  EXPECT(add(square.data()) == static_cast<T>(lanes * (lanes - 1) / 2), "wrong sum");
  transpose(square.data());
  for (int i = 0; i < lanes; ++i) {
    for (int j = 0; j < lanes; ++j) {
      const T x = square[static_cast<size_t>(i * lanes + j)];
      EXPECT(x == static_cast<T>(j * lanes + i), "[%d, %d] is %g", i, j, static_cast<double>(x));
    }
  }
}

// Returns the second number if one is NaN, as documented in the header.
void test_maximum() {
  testing("maximum: %s", isa());
  const float infinity = HUGE_VALF;
  const float values[] = {-infinity, -1.0f, 0.0f, 2.0f, infinity, NAN};
  for (float a : values) {
    for (float b : values) {
      float left[16], right[16], result[16];
      for (int i = 0; i < 16; ++i) {
        left[i] = a;
        right[i] = b;
      }
      functions().maximum_float(left, right, result);
      const float want = a > b ? a : b;
      EXPECT(bits_of<uint32_t>(result[0]) == bits_of<uint32_t>(want), "of %g and %g it is %g",
             static_cast<double>(a), static_cast<double>(b), static_cast<double>(result[0]));
    }
  }
}

void test_uint8() {
  testing("uint8: %s", isa());
  uint8_t all[256];
  float result[256];
  for (int i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
  functions().load_uint8(all, result, 256);
  for (int i = 0; i < 256; ++i) EXPECT(result[i] == static_cast<float>(i), "%d is wrong", i);
}

}  // namespace

int main(int argc, char** argv) {
  for_each_isa([&] {
    const SimdFunctions f = functions();
    if (wanted(argc, argv, "lanes")) {
      test_lanes(f.transpose_float, f.add_lanes_float, f.lanes);
      test_lanes(f.transpose_double, f.add_lanes_double, f.lanes / 2);
    }
    if (!wanted(argc, argv, "numbers")) return;
    test_small_formats();
    test_rounding();
    test_uint8();
    test_exp2<float, double>(f.exp2_float, exp2, -126, 127);
    test_exp2<double, long double>(f.exp2_double, exp2l, -1022, 1023);
    test_log2<float, double>(f.log2_float, log2);
    test_log2<double, long double>(f.log2_double, log2l);
    test_reciprocal();
    test_activation("gelu_tanh", f.gelu_tanh, exact_gelu_tanh);
    test_activation("gelu_erf", f.gelu_erf, exact_gelu_erf);
    test_activation("silu", f.silu, exact_silu);
    test_first(vit::DType::kFloat32, f.copy_first_float, f.lanes);
    test_first(vit::DType::kFloat64, f.copy_first_double, f.lanes / 2);
    test_first(vit::DType::kBfloat16, f.copy_first_bfloat16, f.lanes);
    test_first(vit::DType::kFloat16, f.copy_first_float16, f.lanes);
    test_maximum();
  });
  return finish();
}
