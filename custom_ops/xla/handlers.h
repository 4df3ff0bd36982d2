// What the FFI handlers of all devices share: a handler is called with buffers and with the
// attributes that compile.cc wrote. It checks them again, describes the problem, and runs the op.
// Handlers need no TensorFlow, only the headers of XLA's FFI.
#ifndef CUSTOM_OPS_XLA_HANDLERS_H_
#define CUSTOM_OPS_XLA_HANDLERS_H_

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "custom_ops/cc/op_lists.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// Its header, xla/ffi/ffi_api.h, cannot be included together with xla/ffi/api/ffi.h.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace vit {

namespace ffi = xla::ffi;

// The attributes that compile.cc writes.
class Attributes {
 public:
  explicit Attributes(ffi::Dictionary attributes) : attributes_(attributes) {}

  template <class T>
  Status get(std::string_view name, T* value) const {
    const ffi::ErrorOr<T> found = attributes_.get<T>(name);
    if (found.has_error()) return invalid("Attribute ", name, ": ", found.error().message());
    *value = found.value();
    return {};
  }

  Status get(std::string_view name, bool* value) const {
    int64_t number;
    VIT_RETURN_IF_ERROR(get(name, &number));
    *value = number != 0;
    return {};
  }

  Status get(std::string_view name, std::vector<int64_t>* value) const {
    ffi::Span<const int64_t> numbers;
    VIT_RETURN_IF_ERROR(get(name, &numbers));
    value->assign(numbers.begin(), numbers.end());
    return {};
  }

  Status get(std::string_view name, std::vector<float>* value) const {
    ffi::Span<const int32_t> bits;
    VIT_RETURN_IF_ERROR(get(name, &bits));
    value->resize(bits.size());
    if (bits.size()) std::memcpy(value->data(), bits.begin(), bits.size() * sizeof(float));
    return {};
  }

  Status get(std::string_view name, std::optional<double>* value) const {
    std::vector<float> parts;
    VIT_RETURN_IF_ERROR(get(name, &parts));
    *value = sum_of(parts);
    return {};
  }

  Status get(std::string_view name, float* value) const {
    std::vector<float> values;
    VIT_RETURN_IF_ERROR(get(name, &values));
    if (values.size() != 1) return invalid("Attribute ", name, " must be one number.");
    *value = values[0];
    return {};
  }

  Status get(std::string_view name, std::string* value) const {
    std::string_view found;
    VIT_RETURN_IF_ERROR(get(name, &found));
    *value = found;
    return {};
  }

  Status get(std::string_view name, std::vector<std::string>* value) const {
    std::string text;
    VIT_RETURN_IF_ERROR(get(name, &text));
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) value->push_back(part);
    return {};
  }

  Status get(std::string_view name, ElementType* value) const {
    std::vector<ElementType> types;
    VIT_RETURN_IF_ERROR(get(name, &types));
    if (types.size() != 1) return invalid("Attribute ", name, " must be one dtype.");
    *value = types[0];
    return {};
  }

  Status get(std::string_view name, std::vector<ElementType>* value) const {
    std::vector<std::string> names;
    VIT_RETURN_IF_ERROR(get(name, &names));
    for (const std::string& type : names) {
      const auto found = type_named(type);
      if (!found) return invalid("There is no dtype with the name ", type, ".");
      value->push_back(*found);
    }
    return {};
  }

 private:
  const ffi::Dictionary attributes_;
};

// By ElementType.
constexpr ffi::DataType kBufferTypes[] = {ffi::F32,  ffi::BF16, ffi::F16, ffi::F64, ffi::U8,
                                          ffi::PRED, ffi::S8,   ffi::S16, ffi::U16, ffi::S32,
                                          ffi::U32,  ffi::S64,  ffi::U64, ffi::C64, ffi::C128};

// Gets the array of a buffer. XLA passes known dimensions; to the checks of the ops, a negative one
// is unknown.
inline Status get_array(const ffi::ErrorOr<ffi::AnyBuffer>& buffer, Array* array) {
  if (buffer.has_error()) return invalid(buffer.error().message());
  const auto* type =
      std::find(std::begin(kBufferTypes), std::end(kBufferTypes), buffer.value().element_type());
  if (type == std::end(kBufferTypes)) return invalid("A buffer has a dtype that no op has.");
  const auto dims = buffer.value().dimensions();
  *array = {static_cast<ElementType>(type - kBufferTypes), Dims(dims.begin(), dims.end()),
            buffer.value().untyped_data(), "A buffer"};
  for (int64_t n : dims) {
    if (n < 0) return invalid("A buffer has a dimension below 0: ", n, ".");
  }
  return check_size(*array);
}

// Takes the value of the constant input from the attributes: on a GPU its buffer is in the memory
// of the GPU.
template <class Body>
Status take_constant(const Attributes& attributes, std::vector<int64_t>* constant, Arrays* inputs) {
  constexpr int i = Body::kConstantInput;
  if (i < 0 || static_cast<size_t>(i) >= inputs->size()) return {};
  VIT_RETURN_IF_ERROR(attributes.get(kConstant, constant));
  const auto size = static_cast<int64_t>(constant->size());
  VIT_RETURN_IF_ERROR(check_shape(kConstant, (*inputs)[i], "that of its value", {size}));
  (*inputs)[i].data = constant->data();
  return {};
}

// Runs an op on a device: on the CPU with Execution, on a GPU with CudaExecution.
template <class Body, class DeviceExecution>
Status call(ffi::Dictionary dictionary, ffi::RemainingArgs arguments, ffi::RemainingRets results,
            const DeviceExecution& execution) {
  Body body;
  const Attributes attributes(dictionary);
  VIT_RETURN_IF_ERROR(body.init(&attributes));
  Arrays inputs(arguments.size()), outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    VIT_RETURN_IF_ERROR(get_array(arguments.get<ffi::AnyBuffer>(i), &inputs[i]));
  }
  std::vector<int64_t> constant;
  VIT_RETURN_IF_ERROR(take_constant<Body>(attributes, &constant, &inputs));
  VIT_RETURN_IF_ERROR(check_call(body, inputs, &outputs));
  if (results.size() != outputs.size()) {
    return invalid("There must be ", outputs.size(), " results. Received: ", results.size(), ".");
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return invalid(buffer.error().message());
    Array given;
    VIT_RETURN_IF_ERROR(get_array(*buffer.value(), &given));
    VIT_RETURN_IF_ERROR(take_output(given, &outputs[i]));
  }
  return status_of(body.run(inputs, outputs, execution), Body::kName);
}

template <class Body>
ffi::Error error_of(const Status& status) {
  return ffi::Error(static_cast<XLA_FFI_Error_Code>(status.code),
                    std::string(Body::kName) + ": " + status.message);
}

// Gives the XLA of TensorFlow a handler for each op. XLA refuses a second one of the same name,
// from another copy of this library, by an error, which nobody needs to read.
template <template <class> class Handler, class... Bodies>
bool register_handlers(const char* platform, OpList<Bodies...>) {
  const XLA_FFI_Api* api = ffi::GetXlaFfiApi();
  (ffi::Ffi::RegisterStaticHandler(api, Bodies::kName, platform, Handler<Bodies>::run), ...);
  return true;
}

// The handler of the op of this name, null if there is none. Runtimes other than TensorFlow, such
// as JAX, have an XLA of their own, which takes handlers by their addresses.
template <template <class> class Handler, class... Bodies>
XLA_FFI_Handler* find_handler(std::string_view name, OpList<Bodies...>) {
  XLA_FFI_Handler* found = nullptr;
  ((found = name == Bodies::kName ? Handler<Bodies>::run : found), ...);
  return found;
}

}  // namespace vit

#endif  // CUSTOM_OPS_XLA_HANDLERS_H_
