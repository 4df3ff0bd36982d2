// What the FFI handlers of all devices share: a handler is called with buffers and with the
// attributes that compile.cc wrote. It checks them again, describes the problem, and runs the op.
#ifndef CUSTOM_OPS_XLA_HANDLERS_H_
#define CUSTOM_OPS_XLA_HANDLERS_H_

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "custom_ops/xla/ops.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// Its header, xla/ffi/ffi_api.h, cannot be included together with xla/ffi/api/ffi.h.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace vit {

namespace ffi = xla::ffi;

// The attributes in the way of tensorflow::OpKernelConstruction.
class Attributes {
 public:
  explicit Attributes(ffi::Dictionary attributes) : attributes_(attributes) {}

  absl::Status GetAttr(std::string_view name, int64_t* value) const { return get(name, value); }

  absl::Status GetAttr(std::string_view name, tensorflow::DataType* value) const {
    int64_t number;
    TF_RETURN_IF_ERROR(get(name, &number));
    return type_of(number, value);
  }

  absl::Status GetAttr(std::string_view name, tensorflow::DataTypeVector* value) const {
    ffi::Span<const int64_t> numbers;
    TF_RETURN_IF_ERROR(get(name, &numbers));
    for (int64_t number : numbers) {
      tensorflow::DataType type;
      TF_RETURN_IF_ERROR(type_of(number, &type));
      value->push_back(type);
    }
    return absl::OkStatus();
  }

  absl::Status GetAttr(std::string_view name, std::vector<int64_t>* value) const {
    ffi::Span<const int64_t> numbers;
    TF_RETURN_IF_ERROR(get(name, &numbers));
    value->assign(numbers.begin(), numbers.end());
    return absl::OkStatus();
  }

  absl::Status GetAttr(std::string_view name, std::vector<float>* value) const {
    ffi::Span<const int32_t> bits;
    TF_RETURN_IF_ERROR(get(name, &bits));
    value->resize(bits.size());
    if (bits.size()) std::memcpy(value->data(), bits.begin(), bits.size() * sizeof(float));
    return absl::OkStatus();
  }

  absl::Status GetAttr(std::string_view name, bool* value) const {
    int64_t number;
    TF_RETURN_IF_ERROR(get(name, &number));
    *value = number != 0;
    return absl::OkStatus();
  }

  absl::Status GetAttr(std::string_view name, float* value) const {
    std::vector<float> values;
    TF_RETURN_IF_ERROR(GetAttr(name, &values));
    if (values.size() != 1) return invalid("Attribute ", name, " must be one number.");
    *value = values[0];
    return absl::OkStatus();
  }

  absl::Status GetAttr(std::string_view name, std::string* value) const {
    std::string_view found;
    TF_RETURN_IF_ERROR(get(name, &found));
    *value = found;
    return absl::OkStatus();
  }

  absl::Status GetAttr(std::string_view name, std::vector<std::string>* value) const {
    std::string_view names;
    TF_RETURN_IF_ERROR(get(name, &names));
    *value = absl::StrSplit(names, ',');
    return absl::OkStatus();
  }

 private:
  template <class T>
  absl::Status get(std::string_view name, T* value) const {
    const ffi::ErrorOr<T> found = attributes_.get<T>(name);
    if (found.has_error()) return invalid("Attribute ", name, ": ", found.error().message());
    *value = found.value();
    return absl::OkStatus();
  }

  static absl::Status type_of(int64_t number, tensorflow::DataType* type) {
    if (number < 0 || number > tensorflow::DataType_MAX) {
      return invalid("There is no dtype with the number ", number, ".");
    }
    *type = static_cast<tensorflow::DataType>(number);
    return absl::OkStatus();
  }

  const ffi::Dictionary attributes_;
};

inline tensorflow::DataType type_of(ffi::DataType type) {
  switch (type) {
    case ffi::F32:
      return tensorflow::DT_FLOAT;
    case ffi::F64:
      return tensorflow::DT_DOUBLE;
    case ffi::BF16:
      return tensorflow::DT_BFLOAT16;
    case ffi::F16:
      return tensorflow::DT_HALF;
    case ffi::U8:
      return tensorflow::DT_UINT8;
    case ffi::U16:
      return tensorflow::DT_UINT16;
    case ffi::U32:
      return tensorflow::DT_UINT32;
    case ffi::U64:
      return tensorflow::DT_UINT64;
    case ffi::S8:
      return tensorflow::DT_INT8;
    case ffi::S16:
      return tensorflow::DT_INT16;
    case ffi::S32:
      return tensorflow::DT_INT32;
    case ffi::S64:
      return tensorflow::DT_INT64;
    case ffi::PRED:
      return tensorflow::DT_BOOL;
    case ffi::C64:
      return tensorflow::DT_COMPLEX64;
    case ffi::C128:
      return tensorflow::DT_COMPLEX128;
    default:
      return tensorflow::DT_INVALID;
  }
}

inline Array array_of(ffi::AnyBuffer buffer) {
  const auto dims = buffer.dimensions();
  return {type_of(buffer.element_type()), Dims(dims.begin(), dims.end()), buffer.untyped_data(),
          "A buffer"};
}

// XLA passes known dimensions; to the checks of the ops, a negative one is unknown.
inline absl::Status check_buffer(const Array& buffer) {
  for (int64_t n : buffer.dims) {
    if (n < 0) return invalid("A buffer has a dimension below 0: ", n, ".");
  }
  return check_size(buffer);
}

// Checks that the buffer of an output is what the op writes, and sets output->data.
inline absl::Status take_buffer(const Array& buffer, Array* output) {
  TF_RETURN_IF_ERROR(check_buffer(buffer));
  TF_RETURN_IF_ERROR(check_size(*output));
  TF_RETURN_IF_ERROR(check_type(output->name, buffer, output->type));
  TF_RETURN_IF_ERROR(check_shape(output->name, buffer.dims, "its result", output->dims));
  output->data = buffer.data;
  return absl::OkStatus();
}

// Takes the value of the constant input from the attributes: on a GPU its buffer is in the memory
// of the GPU.
template <class Body>
absl::Status take_constant(const Attributes& attributes, std::vector<int64_t>* constant,
                           Arrays* inputs) {
  constexpr int i = Body::kConstantInput;
  if (i < 0 || static_cast<size_t>(i) >= inputs->size()) return absl::OkStatus();
  TF_RETURN_IF_ERROR(attributes.GetAttr(kConstant, constant));
  const auto size = static_cast<int64_t>(constant->size());
  TF_RETURN_IF_ERROR(check_shape(kConstant, {size}, "its input", (*inputs)[i].dims));
  (*inputs)[i].data = constant->data();
  return absl::OkStatus();
}

// Runs an op on a device: on the CPU with Execution, on a GPU with CudaExecution.
template <class Body, class DeviceExecution>
absl::Status call(ffi::Dictionary dictionary, ffi::RemainingArgs arguments,
                  ffi::RemainingRets results, const DeviceExecution& execution) {
  Body body;
  const Attributes attributes(dictionary);
  TF_RETURN_IF_ERROR(body.init(&attributes));
  Arrays inputs, outputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto buffer = arguments.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return invalid(buffer.error().message());
    inputs.push_back(array_of(buffer.value()));
    TF_RETURN_IF_ERROR(check_buffer(inputs.back()));
  }
  std::vector<int64_t> constant;
  TF_RETURN_IF_ERROR(take_constant<Body>(attributes, &constant, &inputs));
  TF_RETURN_IF_ERROR(body.check(inputs, &outputs));
  if (results.size() != outputs.size()) {
    return invalid("There must be ", outputs.size(), " results. Received: ", results.size(), ".");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return invalid(buffer.error().message());
    TF_RETURN_IF_ERROR(take_buffer(array_of(*buffer.value()), &outputs[i]));
  }
  return status_of(body.run(inputs, outputs, execution), Body::kName);
}

template <class Body>
ffi::Error error_of(const absl::Status& status) {
  // The codes of both are the same numbers.
  return ffi::Error(static_cast<XLA_FFI_Error_Code>(status.code()),
                    absl::StrCat(Body::kName, ": ", status.message()));
}

// Gives XLA a handler for each op. XLA refuses a second one of the same name, from another copy of
// this library, by an error, which nobody needs to read.
template <template <class> class Handler, class... Bodies>
bool register_handlers(const char* platform, OpList<Bodies...>) {
  const XLA_FFI_Api* api = ffi::GetXlaFfiApi();
  (ffi::Ffi::RegisterStaticHandler(api, Bodies::kName, platform, Handler<Bodies>::run), ...);
  return true;
}

}  // namespace vit

#endif  // CUSTOM_OPS_XLA_HANDLERS_H_
