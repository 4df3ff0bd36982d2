// What runs in a program that XLA compiled: an FFI handler for each op, which is called with
// buffers and with the attributes that compile.cc wrote.

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "custom_ops/tf/shared_work.h"
#include "custom_ops/xla/ops.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// Its header, xla/ffi/ffi_api.h, cannot be included together with xla/ffi/api/ffi.h.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace vit {
namespace {

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

  absl::Status GetAttr(std::string_view name, std::vector<float>* value) const {
    ffi::Span<const int32_t> bits;
    TF_RETURN_IF_ERROR(get(name, &bits));
    value->resize(bits.size());
    if (bits.size()) std::memcpy(value->data(), bits.begin(), bits.size() * sizeof(float));
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

tensorflow::DataType type_of(ffi::DataType type) {
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

Array array_of(ffi::AnyBuffer buffer) {
  const auto dims = buffer.dimensions();
  return {type_of(buffer.element_type()), Dims(dims.begin(), dims.end()), buffer.untyped_data(),
          "A buffer"};
}

// XLA passes known dimensions; to the checks of the ops, a negative one is unknown.
absl::Status check_buffer(const Array& buffer) {
  for (int64_t n : buffer.dims) {
    if (n < 0) return invalid("A buffer has a dimension below 0: ", n, ".");
  }
  return check_size(buffer);
}

// Checks that the buffer of an output is what the op writes, and sets output->data.
absl::Status take_buffer(const Array& buffer, Array* output) {
  TF_RETURN_IF_ERROR(check_buffer(buffer));
  TF_RETURN_IF_ERROR(check_size(*output));
  TF_RETURN_IF_ERROR(check_type(output->name, buffer, output->type));
  TF_RETURN_IF_ERROR(check_shape(output->name, buffer.dims, "its result", output->dims));
  output->data = buffer.data;
  return absl::OkStatus();
}

void run_on_pool(void* pool, int64_t total, int64_t cost, RangeBody body, void* argument) {
  auto* threads = static_cast<ffi::ThreadPool*>(pool);
  const auto schedule = [threads](auto&& task) { threads->Schedule(std::move(task)); };
  run_shared(threads->num_threads(), schedule, total, cost, body, argument);
}

template <class Body>
absl::Status call(ffi::ThreadPool* pool, ffi::Dictionary attributes, ffi::RemainingArgs arguments,
                  ffi::RemainingRets results) {
  Body body;
  const Attributes readable(attributes);
  TF_RETURN_IF_ERROR(body.init(&readable));
  Arrays inputs, outputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto buffer = arguments.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return invalid(buffer.error().message());
    inputs.push_back(array_of(buffer.value()));
    TF_RETURN_IF_ERROR(check_buffer(inputs.back()));
  }
  TF_RETURN_IF_ERROR(body.check(inputs, &outputs));
  if (results.size() != outputs.size()) {
    return invalid("There must be ", outputs.size(), " results. Received: ", results.size(), ".");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return invalid(buffer.error().message());
    TF_RETURN_IF_ERROR(take_buffer(array_of(*buffer.value()), &outputs[i]));
  }
  const Execution execution = {{run_on_pool, pool}, heap()};
  return status_of(body.run(inputs, outputs, execution), Body::kName);
}

template <class Body>
ffi::Error call_or_error(ffi::ThreadPool pool, ffi::Dictionary attributes,
                         ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const absl::Status status = call<Body>(&pool, attributes, arguments, results);
  // The codes of both are the same numbers.
  return ffi::Error(static_cast<XLA_FFI_Error_Code>(status.code()),
                    absl::StrCat(Body::kName, ": ", status.message()));
}

template <class Body>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  static const auto* const bound = ffi::Ffi::Bind()
                                       .Ctx<ffi::ThreadPool>()
                                       .Attrs()
                                       .RemainingArgs()
                                       .RemainingRets()
                                       .To(call_or_error<Body>)
                                       .release();
  return bound->Call(frame);
}

// XLA refuses a second handler of the same name, from another copy of this library, by an error,
// which nobody needs to read.
template <class... Bodies>
bool register_handlers(OpList<Bodies...>) {
  const XLA_FFI_Api* api = ffi::GetXlaFfiApi();
  (ffi::Ffi::RegisterStaticHandler(api, Bodies::kName, "Host", handler<Bodies>), ...);
  return true;
}

[[maybe_unused]] const bool registered = register_handlers(XlaOps());

}  // namespace
}  // namespace vit
