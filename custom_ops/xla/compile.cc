// How XLA compiles the ops: an XlaOpKernel for each op, which checks the shapes and emits a call of
// the handler of the same name: see handlers.h.

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "custom_ops/cc/op_lists.h"
#include "custom_ops/tf/device_kernel.h"
#include "custom_ops/tf/tensorflow_types.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace vit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernelContext;

// A list of numbers as an MLIR attribute.
template <class T>
std::string list(const char* type, const std::vector<T>& values) {
  return absl::StrCat("array<", type, values.empty() ? "" : ": ", absl::StrJoin(values, ", "), ">");
}

// Passes on the attributes of an op, and writes those that are read, as an MLIR dictionary.
class WrittenAttributes {
 public:
  explicit WrittenAttributes(OpKernelConstruction* c) : attributes_(c) {}

  template <class T>
  Status get(const char* name, T* value) {
    VIT_RETURN_IF_ERROR(attributes_.get(name, value));
    absl::StrAppend(&text_, text_.empty() ? "" : ", ", name, " = ", written(*value));
    return {};
  }

  Status get(const char* name, std::optional<double>* value) {
    std::vector<float> parts;
    VIT_RETURN_IF_ERROR(get(name, &parts));
    *value = sum_of(parts);
    return {};
  }

  // Without the braces around them.
  std::string text() const { return text_; }

 private:
  static std::string written(int64_t value) { return absl::StrCat(value, " : i64"); }

  static std::string written(bool value) { return written(int64_t{value}); }

  static std::string written(float value) { return written(std::vector<float>{value}); }

  static std::string written(const std::string& value) { return absl::StrCat("\"", value, "\""); }

  static std::string written(ElementType value) { return written(std::string(name_of(value))); }

  // As bits, which are exact.
  static std::string written(const std::vector<float>& values) {
    std::vector<int32_t> bits(values.size());
    if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
    return list("i32", bits);
  }

  static std::string written(const std::vector<std::string>& values) {
    return written(absl::StrJoin(values, ","));
  }

  static std::string written(const std::vector<ElementType>& values) {
    std::vector<std::string> names;
    for (ElementType type : values) names.push_back(name_of(type));
    return written(names);
  }

  const TensorflowAttributes<OpKernelConstruction> attributes_;
  std::string text_;
};

absl::Status shape_of(const Array& array, xla::Shape* shape) {
  xla::PrimitiveType type;
  TF_RETURN_IF_ERROR(
      tensorflow::DataTypeToPrimitiveType(kDataTypes[static_cast<int>(array.type)], &type));
  *shape = xla::ShapeUtil::MakeShape(type, array.dims);  // row-major
  return absl::OkStatus();
}

template <class Body>
class XlaKernel : public tensorflow::XlaOpKernel {
 public:
  explicit XlaKernel(OpKernelConstruction* c) : XlaOpKernel(c) {
    WrittenAttributes attributes(c);
    OP_REQUIRES_OK(c, absl_status(body_.init(&attributes)));
    attributes_ = attributes.text();
  }

  void Compile(XlaOpKernelContext* c) override {
    Arrays inputs, outputs;
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> shapes, results;
    for (int i = 0; i < c->num_inputs(); ++i) {
      const auto shape = c->InputXlaShape(i);
      OP_REQUIRES_OK(c, shape.status());
      OP_REQUIRES(c, shape->is_static(),
                  absl_status(invalid(
                      Body::kName, " has an input of shape ", shape->ToString(),
                      ", whose size is known only at run time. Compiled by XLA, the op needs ",
                      "fixed sizes; the reference does not: VIT_OPS=reference.")));
      const auto sizes = shape->dimensions();
      Array& input = inputs.emplace_back();
      input.dims.assign(sizes.begin(), sizes.end());
      OP_REQUIRES_OK(c, absl_status(get_type(c->input_type(i), &input.type)));
      operands.push_back(c->Input(i));
      OP_REQUIRES_OK(c, shape_of(input, &shapes.emplace_back()));
    }
    std::vector<int64_t> constant;
    std::string attributes = attributes_;
    if (constexpr int i = Body::kConstantInput; i >= 0) {
      OP_REQUIRES_OK(c, c->ConstantInputAsIntVector(i, &constant));
      inputs[i].data = constant.data();
      absl::StrAppend(&attributes, ", ", kConstant, " = ", list("i64", constant));
    }
    OP_REQUIRES_OK(c, absl_status(check_call(body_, inputs, &outputs)));
    for (const Array& output : outputs) {
      OP_REQUIRES_OK(c, shape_of(output, &results.emplace_back()));
    }
    const bool is_tuple = results.size() > 1;
    const xla::XlaOp call = xla::CustomCallWithLayout(
        c->builder(), Body::kName, operands,
        is_tuple ? xla::ShapeUtil::MakeTupleShape(results) : results[0], shapes,
        absl::StrCat("{", attributes, "}"),
        /*has_side_effect=*/false, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
        xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (size_t i = 0; i < results.size(); ++i) {
      c->SetOutput(i, is_tuple ? xla::GetTupleElement(call, i) : call);
    }
  }

 private:
  Body body_;
  std::string attributes_;
};

template <class Body>
OpKernel* make_kernel(OpKernelConstruction* c) {
  return new XlaKernel<Body>(c);
}

#ifdef VIT_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

// The kinds of devices for which XLA compiles an op.
template <class Body>
std::vector<const char*> devices_of() {
  std::vector<const char*> devices = {tensorflow::DEVICE_CPU_XLA_JIT};
  if (kHasCuda && is_in<Body>(CudaOps())) devices.push_back(tensorflow::DEVICE_GPU_XLA_JIT);
  return devices;
}

template <class Body, class Builder>
void restrict_types(const std::string& device, Builder& builder) {
  if (device == tensorflow::DEVICE_GPU_XLA_JIT) restrict_types_on_gpus<Body>(builder);
}

// Does nothing if there is no such op, or if another copy of this library has registered it: then
// XLA would end the process.
template <class Body>
void register_op(const std::vector<std::string>& registered) {
  if (absl::c_linear_search(registered, Body::kName)) return;
  if (!tensorflow::OpRegistry::Global()->LookUp(Body::kName)) return;
  for (const char* device : devices_of<Body>()) {
    auto builder = tensorflow::XlaOpRegistrationBuilder::Name(Body::kName);
    builder.Device(device);
    if (Body::kConstantInput >= 0) builder.CompileTimeConstantInput(kConstantInputName);
    restrict_types<Body>(device, builder);
    tensorflow::XlaOpRegistrar(builder.Build(make_kernel<Body>));
  }
  // XLA makes kernels of all registered ops when it is used first. If that was before this library
  // was loaded, nobody else makes the kernel.
  tensorflow::XlaOpRegistry::RegisterCompilationKernels();
  for (const char* device : devices_of<Body>()) {
    if (has_kernel(Body::kName, device)) continue;
    tensorflow::KernelDefBuilder builder(Body::kName);
    builder.Device(device);
    restrict_types<Body>(device, builder);
    tensorflow::kernel_factory::OpKernelRegistrar(builder.Build(), Body::kName, make_kernel<Body>);
  }
}

template <class... Bodies>
bool register_ops(OpList<Bodies...>) {
  const std::vector<std::string> registered = tensorflow::XlaOpRegistry::GetAllRegisteredOps();
  (register_op<Bodies>(registered), ...);
  return true;
}

[[maybe_unused]] const bool registered = register_ops(CpuOps());

}  // namespace
}  // namespace vit
