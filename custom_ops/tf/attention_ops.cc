// Attention as TensorFlow ops. Saved models contain the names and attributes of the ops: do not
// change them, add only attributes with defaults. The public functions are in
// custom_ops/attention.py.

#include <string>
#include <vector>

#include "custom_ops/tf/attention_bodies.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

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

VIT_REGISTER_KERNEL(Name("VitAttention").Device(tensorflow::DEVICE_CPU), CpuKernel<Attention>);
VIT_REGISTER_KERNEL(Name("VitAttentionGrad").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<AttentionGrad>);
VIT_REGISTER_KERNEL(Name("VitAttentionBiasGrad").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<AttentionBiasGrad>);
VIT_REGISTER_KERNEL(Name("VitAttentionTaps").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<AttentionTaps>);

}  // namespace
}  // namespace vit
