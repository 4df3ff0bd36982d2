// Attention as TensorFlow ops. Saved models contain the names and attributes of the ops: do not
// change them, add only attributes with defaults. The public functions are in
// custom_ops/attention.py.

#include "custom_ops/cpu/attention/attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "custom_ops/tf/attention_checks.h"
#include "custom_ops/tf/registration.h"
#include "custom_ops/tf/tensors.h"
#include "custom_ops/tf/threads.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Shape functions --------------------------------------------------------------------------------

struct Inferred {
  AttentionAttributes attributes;
  ShapeHandle qkv;  // its rank is known
  ShapeHandle out, statistics;
};

absl::Status infer(InferenceContext* c, Inferred* inferred) {
  TF_RETURN_IF_ERROR(get_attributes(c, &inferred->attributes));
  const int64_t heads = inferred->attributes.heads, axis = inferred->attributes.axis;
  inferred->qkv = ranked(c, 0, axis ? 4 : 3);
  const Dims qkv = *dims_of(c, inferred->qkv);
  TF_RETURN_IF_ERROR(check_qkv(qkv, heads, axis));
  if (inferred->attributes.has_bias) {
    const auto bias = dims_of(c, c->input(1));
    if (bias) TF_RETURN_IF_ERROR(check_bias(*bias, logits_dims(qkv, heads, axis)));
  }
  DimensionHandle width;
  TF_RETURN_IF_ERROR(c->Divide(c->Dim(inferred->qkv, -1), 3, /*evenly_divisible=*/true, &width));
  TF_RETURN_IF_ERROR(c->ReplaceDim(inferred->qkv, -1, width, &inferred->out));
  std::vector<DimensionHandle> sizes;
  for (int i = 0; i < c->Rank(inferred->qkv); ++i) sizes.push_back(c->Dim(inferred->qkv, i));
  inferred->statistics =
      c->MakeShape(statistics_dims(sizes, c->MakeDim(heads), c->MakeDim(2), axis));
  return absl::OkStatus();
}

absl::Status infer_forward(InferenceContext* c) {
  Inferred inferred;
  TF_RETURN_IF_ERROR(infer(c, &inferred));
  c->set_output(0, inferred.out);
  c->set_output(1, inferred.statistics);
  return absl::OkStatus();
}

// The inputs out, statistics and d_out come after qkv and bias.
absl::Status infer_gradient(InferenceContext* c, Inferred* inferred) {
  TF_RETURN_IF_ERROR(infer(c, inferred));
  const int first = 1 + inferred->attributes.has_bias;
  const ShapeHandle expected[] = {inferred->out, inferred->statistics, inferred->out};
  const char* names[] = {"out", "statistics", "d_out"};
  for (int i = 0; i < 3; ++i) {
    const auto dims = dims_of(c, c->input(first + i));
    if (dims) {
      TF_RETURN_IF_ERROR(check_shape(names[i], *dims, i == 1 ? "[B, (lines,) H, 2, n]" : "like out",
                                     *dims_of(c, expected[i])));
    }
  }
  return absl::OkStatus();
}

absl::Status infer_qkv_gradient(InferenceContext* c) {
  Inferred inferred;
  TF_RETURN_IF_ERROR(infer_gradient(c, &inferred));
  c->set_output(0, inferred.qkv);
  return absl::OkStatus();
}

absl::Status infer_bias_gradient(InferenceContext* c) {
  Inferred inferred;
  TF_RETURN_IF_ERROR(infer_gradient(c, &inferred));
  if (!inferred.attributes.has_bias) return needs_bias();
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::Status infer_taps(InferenceContext* c) {
  Inferred inferred;
  std::vector<std::string> taps;
  int64_t rows, columns;
  TF_RETURN_IF_ERROR(infer(c, &inferred));
  TF_RETURN_IF_ERROR(c->GetAttr("taps", &taps));
  TF_RETURN_IF_ERROR(c->GetAttr("grid_rows", &rows));
  TF_RETURN_IF_ERROR(c->GetAttr("grid_columns", &columns));
  TF_RETURN_IF_ERROR(check_taps_axis(inferred.attributes.axis));
  const auto statistics = dims_of(c, c->input(1 + inferred.attributes.has_bias));
  if (statistics) {
    TF_RETURN_IF_ERROR(
        check_shape("statistics", *statistics, "[B, H, 2, N]", *dims_of(c, inferred.statistics)));
  }
  if (contains(taps, "distance")) {
    TF_RETURN_IF_ERROR(check_grid(rows, columns, c->Value(c->Dim(inferred.qkv, 1))));
  }
  const ShapeHandle none = c->MakeShape({int64_t{0}});
  const DimensionHandle batch = c->Dim(inferred.qkv, 0), tokens = c->Dim(inferred.qkv, 1);
  const DimensionHandle heads = c->MakeDim(inferred.attributes.heads);
  const ShapeHandle by_head = c->MakeShape({batch, heads});
  const ShapeHandle by_token = c->MakeShape({batch, heads, tokens});
  c->set_output(0, contains(taps, "class_row") ? by_token : none);
  c->set_output(1, contains(taps, "distance") ? by_head : none);
  c->set_output(2, contains(taps, "entropy") ? by_head : none);
  return absl::OkStatus();
}

// The scale is the sum of the list; an empty list means 1 / sqrt(head_size).
#define VIT_ATTENTION_ATTRIBUTES(op)                  \
  op.Attr("num_heads: int >= 1")                      \
      .Attr("axis: int = 0")                          \
      .Attr("T: {" VIT_FLOATS "}")                    \
      .Attr("Tacc: {float, double} = DT_FLOAT")       \
      .Attr("Tbias: list({float, double}) >= 0 = []") \
      .Attr("scale: list(float) = []")

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttention")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Output("out: T")
                             .Output("statistics: Tacc"))
    .SetShapeFn(infer_forward);

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttentionGrad")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Input("out: T")
                             .Input("statistics: Tacc")
                             .Input("d_out: T")
                             .Output("d_qkv: T"))
    .SetShapeFn(infer_qkv_gradient);

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttentionBiasGrad")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Input("out: T")
                             .Input("statistics: Tacc")
                             .Input("d_out: T")
                             .Output("d_bias: Tacc"))
    .SetShapeFn(infer_bias_gradient);

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttentionTaps")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Input("statistics: Tacc")
                             .Output("class_row: Tacc")
                             .Output("distance: Tacc")
                             .Output("entropy: Tacc"))
    .Attr("taps: list({'class_row', 'distance', 'entropy'}) >= 1")
    .Attr("grid_rows: int = 0")
    .Attr("grid_columns: int = 0")
    .SetShapeFn(infer_taps);

// Kernels ----------------------------------------------------------------------------------------

class AttentionOpKernel : public OpKernel {
 public:
  explicit AttentionOpKernel(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, get_attributes(c, &attributes_));
  }

 protected:
  // The problem, read from the attributes and the inputs qkv and bias.
  struct Inputs {
    const Tensor* qkv;
    const Tensor* bias;  // null without a bias
    AttentionProblem problem;
    Dims out, statistics;
  };

  absl::Status read(OpKernelContext* c, Inputs* inputs) const {
    const int64_t heads = attributes_.heads, axis = attributes_.axis;
    inputs->qkv = &c->input(0);
    TF_RETURN_IF_ERROR(optional_input(c, "bias", &inputs->bias));
    const Dims qkv = dims_of(*inputs->qkv);
    TF_RETURN_IF_ERROR(check_qkv(qkv, heads, axis));
    const int64_t width = qkv.back() / 3, size = width / heads;
    inputs->out = qkv;
    inputs->out.back() = width;
    inputs->statistics = statistics_dims<int64_t>(qkv, heads, 2, axis);
    inputs->problem = {};
    inputs->problem.type = dtype_of(attributes_.type);
    inputs->problem.scale = attributes_.scale.value_or(default_attention_scale(size));
    inputs->problem.qkv = inputs->qkv->data();
    if (axis == 0) {
      inputs->problem.shape = sequence_shape(qkv[0], qkv[1], heads, size);
    } else {
      inputs->problem.shape =
          grid_shape(qkv[0], qkv[1], qkv[2], heads, size, static_cast<int>(axis));
    }
    if (inputs->bias) {
      const Dims logits = logits_dims(qkv, heads, axis);
      TF_RETURN_IF_ERROR(check_bias(dims_of(*inputs->bias), logits));
      set_bias(*inputs->bias, &inputs->problem.bias);
    }
    return absl::OkStatus();
  }

  // Reads the inputs out, statistics and d_out, which come after qkv and bias.
  absl::Status read_gradient(OpKernelContext* c, Inputs* inputs,
                             AttentionGradientProblem* problem) const {
    const Tensor *out, *statistics, *d_out;
    TF_RETURN_IF_ERROR(read(c, inputs));
    TF_RETURN_IF_ERROR(c->input("out", &out));
    TF_RETURN_IF_ERROR(c->input("statistics", &statistics));
    TF_RETURN_IF_ERROR(c->input("d_out", &d_out));
    TF_RETURN_IF_ERROR(check_shape("out", dims_of(*out), "like out", inputs->out));
    TF_RETURN_IF_ERROR(check_shape("statistics", dims_of(*statistics), "[B, (lines,) H, 2, n]",
                                   inputs->statistics));
    TF_RETURN_IF_ERROR(check_shape("d_out", dims_of(*d_out), "like out", inputs->out));
    *problem = {inputs->problem, out->data(), statistics->data(), d_out->data(), nullptr};
    return absl::OkStatus();
  }

  AttentionAttributes attributes_;

 private:
  // Sets the strides of a bias that broadcasts to [B, (lines,) H, n, n].
  void set_bias(const Tensor& tensor, AttentionBias* bias) const {
    int64_t* by_axis[] = {&bias->key_stride, &bias->query_stride, &bias->head_stride,
                          attributes_.axis ? &bias->line_stride : &bias->batch_stride,
                          &bias->batch_stride};
    bias->data = tensor.data();
    int64_t stride = 1;
    for (int i = 0; i < tensor.dims(); ++i) {
      const int64_t size = tensor.dim_size(tensor.dims() - 1 - i);
      *by_axis[i] = size == 1 ? 0 : stride;
      stride *= size;
    }
  }
};

class AttentionOp : public AttentionOpKernel {
 public:
  using AttentionOpKernel::AttentionOpKernel;

  void Compute(OpKernelContext* c) override {
    Inputs inputs;
    Tensor *out, *statistics;
    OP_REQUIRES_OK(c, read(c, &inputs));
    OP_REQUIRES_OK(c, allocate(c, 0, "out", inputs.out, &out));
    OP_REQUIRES_OK(c, allocate(c, 1, "statistics", inputs.statistics, &statistics));
    if (out->NumElements() == 0) return;
    const AttentionForwardProblem problem = {inputs.problem, out->data(), statistics->data()};
    OP_REQUIRES_OK(c, status_of(c, attention_forward(problem, execution_of(c)), "VitAttention"));
  }
};

class AttentionGradOp : public AttentionOpKernel {
 public:
  using AttentionOpKernel::AttentionOpKernel;

  void Compute(OpKernelContext* c) override {
    Inputs inputs;
    AttentionGradientProblem problem;
    Tensor* d_qkv;
    OP_REQUIRES_OK(c, read_gradient(c, &inputs, &problem));
    OP_REQUIRES_OK(c, allocate(c, 0, "d_qkv", dims_of(*inputs.qkv), &d_qkv));
    if (d_qkv->NumElements() == 0) return;
    problem.gradient = d_qkv->data();
    OP_REQUIRES_OK(c,
                   status_of(c, attention_backward(problem, execution_of(c)), "VitAttentionGrad"));
  }
};

class AttentionBiasGradOp : public AttentionOpKernel {
 public:
  explicit AttentionBiasGradOp(OpKernelConstruction* c) : AttentionOpKernel(c) {
    OP_REQUIRES(c, attributes_.has_bias, needs_bias());
  }

  void Compute(OpKernelContext* c) override {
    Inputs inputs;
    AttentionGradientProblem problem;
    Tensor* d_bias;
    OP_REQUIRES_OK(c, read_gradient(c, &inputs, &problem));
    OP_REQUIRES_OK(c, allocate(c, 0, "d_bias", dims_of(*inputs.bias), &d_bias));
    if (inputs.qkv->NumElements() == 0) {
      fill_with_zeros(d_bias);
      return;
    }
    problem.gradient = d_bias->data();
    OP_REQUIRES_OK(
        c, status_of(c, attention_bias_gradient(problem, execution_of(c)), "VitAttentionBiasGrad"));
  }
};

class AttentionTapsOp : public AttentionOpKernel {
 public:
  explicit AttentionTapsOp(OpKernelConstruction* c) : AttentionOpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("taps", &taps_));
    OP_REQUIRES_OK(c, c->GetAttr("grid_rows", &rows_));
    OP_REQUIRES_OK(c, c->GetAttr("grid_columns", &columns_));
    OP_REQUIRES_OK(c, check_taps_axis(attributes_.axis));
  }

  void Compute(OpKernelContext* c) override {
    Inputs inputs;
    const Tensor* statistics;
    OP_REQUIRES_OK(c, read(c, &inputs));
    OP_REQUIRES_OK(c, c->input("statistics", &statistics));
    OP_REQUIRES_OK(
        c, check_shape("statistics", dims_of(*statistics), "[B, H, 2, N]", inputs.statistics));
    const AttentionShape& shape = inputs.problem.shape;
    if (contains(taps_, "distance")) {
      OP_REQUIRES_OK(c, check_grid(rows_, columns_, shape.tokens));
    }
    Tensor* taps[3];
    const char* names[] = {"class_row", "distance", "entropy"};
    for (int i = 0; i < 3; ++i) {
      Dims dims = {0};
      if (contains(taps_, names[i])) {
        dims = {shape.batch, shape.heads};
        if (i == 0) dims.push_back(shape.tokens);
      }
      OP_REQUIRES_OK(c, allocate(c, i, names[i], dims, &taps[i]));
    }
    if (inputs.qkv->NumElements() == 0) {
      for (Tensor* tap : taps) fill_with_zeros(tap);
      return;
    }
    for (Tensor*& tap : taps) {
      if (tap->NumElements() == 0) tap = nullptr;
    }
    const AttentionTapsProblem problem = {
        inputs.problem, statistics->data(), rows_,         columns_,
        data(taps[0]),  data(taps[1]),      data(taps[2]),
    };
    OP_REQUIRES_OK(c, status_of(c, attention_taps(problem, execution_of(c)), "VitAttentionTaps"));
  }

 private:
  std::vector<std::string> taps_;
  int64_t rows_, columns_;
};

VIT_REGISTER_KERNEL(Name("VitAttention").Device(tensorflow::DEVICE_CPU), AttentionOp);
VIT_REGISTER_KERNEL(Name("VitAttentionGrad").Device(tensorflow::DEVICE_CPU), AttentionGradOp);
VIT_REGISTER_KERNEL(Name("VitAttentionBiasGrad").Device(tensorflow::DEVICE_CPU),
                    AttentionBiasGradOp);
VIT_REGISTER_KERNEL(Name("VitAttentionTaps").Device(tensorflow::DEVICE_CPU), AttentionTapsOp);

}  // namespace
}  // namespace vit
