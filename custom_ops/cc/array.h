// Inputs and outputs of the ops, for every runtime that calls them, and checks of their types and
// dimensions. A dimension below 0 is not known yet.
#ifndef CUSTOM_OPS_CC_ARRAY_H_
#define CUSTOM_OPS_CC_ARRAY_H_

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/status.h"

namespace vit {

// The first ones are the types of DType, with the same numbers. Other arrays are only copied.
enum class ElementType : int {
  kUnknown = -1,  // in shape functions, since TensorFlow checks types itself
  kFloat32,
  kBfloat16,
  kFloat16,
  kFloat64,
  kUint8,
  kBool,
  kInt8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kComplex64,
  kComplex128,
};

// By ElementType: the name in NumPy and ml_dtypes, and the bytes of an element.
constexpr struct {
  const char* name;
  int64_t size;
} kElementTypes[] = {{"float32", 4}, {"bfloat16", 2},  {"float16", 2},    {"float64", 8},
                     {"uint8", 1},   {"bool", 1},      {"int8", 1},       {"int16", 2},
                     {"uint16", 2},  {"int32", 4},     {"uint32", 4},     {"int64", 8},
                     {"uint64", 8},  {"complex64", 8}, {"complex128", 16}};

inline const char* name_of(ElementType type) {
  return type == ElementType::kUnknown ? "unknown" : kElementTypes[static_cast<int>(type)].name;
}

inline int64_t size_of(ElementType type) { return kElementTypes[static_cast<int>(type)].size; }

inline std::optional<ElementType> type_named(std::string_view name) {
  const auto* found = std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                                   [&](const auto& type) { return name == type.name; });
  if (found == std::end(kElementTypes)) return std::nullopt;
  return static_cast<ElementType>(found - kElementTypes);
}

inline bool is_float(ElementType type) {
  return type >= ElementType::kFloat32 && type <= ElementType::kFloat64;
}

// Of a float type or kUint8.
inline DType dtype_of(ElementType type) { return static_cast<DType>(type); }

// The type of sums, and of the statistics, the bias and the taps of attention.
inline ElementType accumulator(ElementType type) {
  return type == ElementType::kFloat64 ? ElementType::kFloat64 : ElementType::kFloat32;
}

using Dims = std::vector<int64_t>;

inline bool may_equal(int64_t one, int64_t other) { return one < 0 || other < 0 || one == other; }

inline std::string text(const Dims& dims) {
  std::string text;
  for (int64_t n : dims) text += (text.empty() ? "" : ", ") + (n < 0 ? "?" : std::to_string(n));
  return "[" + text + "]";
}

// An input or an output: dense, in row-major order and aligned to its element type. `name` is set
// in outputs. `data` is null while only shapes are known; the data of inputs are only read.
struct Array {
  ElementType type;
  Dims dims;
  void* data = nullptr;
  const char* name = "";
  // Not even the number of its dimensions is known.
  bool has_any_rank = false;
  // Of an input that holds dimensions, while `data` is null: those, or none if it is not known.
  Dims known_values = {};

  // The dimensions must be known and their product below 2^63, as check_size ensures.
  int64_t elements() const {
    // With a zero, the product of the others may overflow.
    if (std::count(dims.begin(), dims.end(), 0)) return 0;
    int64_t count = 1;
    for (int64_t n : dims) count *= n;
    return count;
  }
  int64_t bytes() const { return elements() * size_of(type); }
};

using Arrays = std::vector<Array>;

// The sum of the parts that an attribute stores a double as, since attributes hold no doubles.
inline std::optional<double> sum_of(const std::vector<float>& parts) {
  if (parts.empty()) return std::nullopt;
  double sum = 0;
  for (float x : parts) sum += x;
  return sum;
}

// Other runtimes than TensorFlow do not check the number and types of inputs.
inline Status check_count(const Arrays& inputs, int64_t expected) {
  if (static_cast<int64_t>(inputs.size()) == expected) return {};
  return invalid("The op must have ", expected, " inputs. Received: ", inputs.size(), ".");
}

// `end` is the end of the error: why it must be this type, and the fix.
inline Status check_type(const char* name, const Array& array, ElementType type,
                         const char* end = ". Cast it.") {
  if (array.type == type || array.type == ElementType::kUnknown) return {};
  return invalid(name, " has dtype ", name_of(array.type), ", but it must be ", name_of(type), end);
}

// The error of a dtype that the kernels do not compute with. `others` are allowed besides floats.
inline Status unsupported(const char* name, const std::string& dtype, const char* others = "") {
  return invalid(name, " has dtype ", dtype, ". Cast it to ", others,
                 "float16, bfloat16, float32 or float64.");
}

inline Status check_float(const char* name, ElementType type) {
  return is_float(type) ? Status() : unsupported(name, name_of(type));
}

// Gets the dimensions, of the rank of `layout`, which names them, for example "[B, H, W, C]".
inline Status get_dims(const char* name, const Array& array, const char* layout, Dims* dims) {
  const size_t rank = 1 + std::count(layout, layout + std::strlen(layout), ',');
  *dims = array.has_any_rank ? Dims(rank, -1) : array.dims;
  if (dims->size() == rank) return {};
  return invalid(name, " must be ", layout, ", of rank ", rank, ". Received shape ", text(*dims),
                 ".");
}

inline Status check_shape(const char* name, const Array& array, const char* layout,
                          const Dims& expected) {
  if (array.has_any_rank) return {};
  bool fits = array.dims.size() == expected.size();
  for (size_t i = 0; fits && i < expected.size(); ++i) fits = may_equal(array.dims[i], expected[i]);
  if (fits) return {};
  return invalid(name, " has shape ", text(array.dims), ", but it must be ", layout, " = ",
                 text(expected), ".");
}

// Multiplies dimensions; -1 if one is not known. Fails if the result overflows.
inline Status product(const char* name, const Dims& dims, int64_t* result) {
  const bool is_known = std::all_of(dims.begin(), dims.end(), [](int64_t n) { return n >= 0; });
  *result = is_known ? 1 : -1;
  if (!is_known) return {};
  if (std::count(dims.begin(), dims.end(), 0)) *result = 0;
  for (int64_t n : dims) {
    if (__builtin_mul_overflow(*result, n, result)) {
      return invalid(name, " of shape ", text(dims), " would have more than 2^63 - 1 elements.");
    }
  }
  return {};
}

// Fails if the bytes of an array are more than 2^63 - 1.
inline Status check_size(const Array& array) {
  int64_t elements, bytes;
  VIT_RETURN_IF_ERROR(product(array.name, array.dims, &elements));
  const int64_t size = size_of(array.type);
  if (!__builtin_mul_overflow(elements, size, &bytes)) return {};
  return invalid(array.name, " of shape ", text(array.dims), " would take ", size, " x ", elements,
                 " bytes, more than 2^63 - 1.");
}

// Checks that an array of the caller is what the op writes, and sets output->data.
inline Status take_output(const Array& given, Array* output) {
  if (given.type != output->type || given.dims != output->dims) {
    return invalid(output->name, " is ", name_of(given.type), " of shape ", text(given.dims),
                   ", but the op writes ", name_of(output->type), " of shape ", text(output->dims),
                   ".");
  }
  output->data = given.data;
  return {};
}

// Checks the inputs of an op of known shapes, and describes its outputs, which are empty before.
template <class Body>
Status check_call(const Body& body, const Arrays& inputs, Arrays* outputs) {
  VIT_RETURN_IF_ERROR(body.check(inputs, outputs));
  for (const Array& output : *outputs) VIT_RETURN_IF_ERROR(check_size(output));
  return {};
}

inline Result set_to_zero(void* data, int64_t bytes, const Execution&) {
  std::memset(data, 0, bytes);
  return Result::kOk;
}

// Skips outputs that are not wanted, whose data are null. Each device has an overload of
// set_to_zero.
template <class DeviceExecution>
typename DeviceExecution::Result fill_with_zeros(const Arrays& arrays,
                                                 const DeviceExecution& execution) {
  for (const Array& array : arrays) {
    if (array.bytes() == 0 || !array.data) continue;
    const auto result = set_to_zero(array.data, array.bytes(), execution);
    if (result != DeviceExecution::Result::kOk) return result;
  }
  return {};
}

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ARRAY_H_
