// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd/vectors.h.
#include "tests/cc/simd_isa.h"

// GCC 12 warns about its own headers: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "custom_ops/cpu/simd/conversions.h"
#include "custom_ops/cpu/simd/activations.h"
#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class T, Vector<T> (*kFunction)(Vector<T>)>
void each(const T* x, T* result, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<T>) store<T>(result + i, kFunction(load<T>(x + i)));
}

// Elements in memory, as bits for types that C++ has no number type for.
template <class S, class Bits>
const S* elements(const Bits* x) {
  return reinterpret_cast<const S*>(x);
}

template <class S, class Bits>
void load_vectors(const Bits* x, float* result, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    store<float>(result + i, load_converted(elements<S>(x) + i));
  }
}
template <class S>
void load_ones(const uint16_t* x, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = convert(elements<S>(x)[i]);
}
template <class S>
void store_vectors(const float* x, uint16_t* result, int64_t count) {
  S* to = reinterpret_cast<S*>(result);
  for (int64_t i = 0; i < count; i += kLanes<float>) store_converted(to + i, load(x + i));
}
template <class S>
void store_ones(const float* x, uint16_t* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) convert_to(x[i], reinterpret_cast<S*>(result) + i);
}
template <class S, class Bits>
void copy_first(const Bits* x, Bits* result, int64_t count) {
  store_first(reinterpret_cast<S*>(result), load_first(elements<S>(x), count), count);
}

template <class T>
void transpose_square(T* square) {
  Vector<T> rows[kLanes<T>];
  for (int i = 0; i < kLanes<T>; ++i) rows[i] = load(square + i * kLanes<T>);
  transpose<T>(rows);
  for (int i = 0; i < kLanes<T>; ++i) store<T>(square + i * kLanes<T>, rows[i]);
}
template <class T>
T add_all(const T* x) {
  return add_lanes<T>(load(x));
}
void maxima(const float* a, const float* b, float* result) {
  store<float>(result, maximum<float>(load(a), load(b)));
}

// Functions that are always inlined have no address, so this wraps one.
template <class T>
Vector<T> exponentials(Vector<T> x) {
  return exp2(x);
}
template <class T>
Vector<T> logarithms(Vector<T> x) {
  return log2<T>(x);
}
Vector<float> reciprocals(Vector<float> x) { return reciprocal(x); }
Vector<float> tanh_forms(Vector<float> x) { return gelu_tanh(x); }
Vector<float> erf_forms(Vector<float> x) { return gelu_erf(x); }
Vector<float> silus(Vector<float> x) { return silu(x); }

#if defined(__AVX512BF16__)
void round_vectors(const float* x, uint16_t* result, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    store_rounded(reinterpret_cast<Bfloat16*>(result) + i, load(x + i));
  }
}
void round_pairs(const float* low, const float* high, uint16_t* result) {
  store_pairs(result, load(low), load(high));
}
#else
constexpr void (*round_vectors)(const float*, uint16_t*, int64_t) = nullptr;
constexpr void (*round_pairs)(const float*, const float*, uint16_t*) = nullptr;
#endif

vit_test::SimdFunctions functions() {
  return {
      kLanes<float>,
      each<float, exponentials<float>>,
      each<double, exponentials<double>>,
      each<float, logarithms<float>>,
      each<double, logarithms<double>>,
      each<float, reciprocals>,
      each<float, tanh_forms>,
      each<float, erf_forms>,
      each<float, silus>,
      load_vectors<Bfloat16, uint16_t>,
      load_ones<Bfloat16>,
      load_vectors<Float16, uint16_t>,
      load_ones<Float16>,
      load_vectors<uint8_t, uint8_t>,
      store_vectors<Bfloat16>,
      store_ones<Bfloat16>,
      store_vectors<Float16>,
      store_ones<Float16>,
      round_vectors,
      round_pairs,
      copy_first<float, float>,
      copy_first<double, double>,
      copy_first<Bfloat16, uint16_t>,
      copy_first<Float16, uint16_t>,
      transpose_square<float>,
      transpose_square<double>,
      add_all<float>,
      add_all<double>,
      maxima,
  };
}

}  // namespace

}  // namespace VIT_ISA
}  // namespace vit

namespace vit_test {

template <vit::Isa isa>
SimdFunctions SimdFunctions::of() {
  return vit::VIT_ISA::functions();
}

template SimdFunctions SimdFunctions::of<vit::VIT_ISA::kIsa>();

}  // namespace vit_test
