// The kernels as a Python module that needs NumPy and no TensorFlow: `import _vit_kernels`.
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cc/attention.h"
#include "custom_ops/cc/kernel.h"
#include "custom_ops/cc/patch_embed.h"
#include "custom_ops/python/arrays.h"

namespace vit {

namespace {

std::string repr(const py::object& object) { return py::repr(object).cast<std::string>(); }

// 0 for None.
int axis_of(const py::object& axis) {
  if (axis.is_none()) return 0;
  int along = 0;
  try {
    along = axis.cast<int>();
  } catch (const py::cast_error&) {
  }
  if (along != 1 && along != 2) {
    throw py::value_error("axis must be None, 1 or 2. Received: " + repr(axis) + ".");
  }
  return along;
}

std::pair<int64_t, int64_t> grid_of(const py::object& grid, int64_t tokens) {
  std::pair<int64_t, int64_t> sides{0, 0};
  try {
    sides = grid.cast<std::pair<int64_t, int64_t>>();
  } catch (const py::cast_error&) {
  }
  if (sides.first < 1 || sides.second < 1 || sides.first > tokens / sides.second) {
    throw py::value_error("grid must be (rows, columns) of at most " + std::to_string(tokens) +
                          " patches. Received: " + repr(grid) + ".");
  }
  return sides;
}

double scale_of(const py::object& scale, DType type, int64_t head_size) {
  if (scale.is_none()) return default_attention_scale(head_size);
  double value = 0;
  try {
    value = scale.cast<double>();
  } catch (const py::cast_error&) {
  }
  if (!is_attention_scale(type, value)) {
    throw py::value_error("scale must be None or a number, finite and above 0 in the precision of "
                          "the softmax. Received: " + repr(scale) + ".");
  }
  return value;
}

// A packed projection, with its shape and scale as the kernels see them.
struct Projection {
  py::array qkv;
  DType type;
  AttentionShape shape;
  double scale;
  std::vector<int64_t> out_shape, statistics_shape, logits_shape;

  Projection(const py::object& object, int64_t num_heads, const py::object& axis,
             const py::object& scale_object)
      : qkv(dense("qkv", object)), type(type_of("qkv", qkv)) {
    check_isa();
    const int along = axis_of(axis);
    const py::ssize_t rank = along ? 4 : 3;
    if (qkv.ndim() != rank) {
      throw py::value_error(std::string("qkv must be ") +
                            (along ? "[B, R, C, 3 D]" : "[B, N, 3 D]") +
                            ". Received shape: " + shape_text(qkv) + ".");
    }
    const int64_t width = qkv.shape(rank - 1);
    if (num_heads < 1 || width == 0 || width % (3 * num_heads)) {
      throw py::value_error("The last dimension of qkv, " + std::to_string(width) +
                            ", must be a positive multiple of 3 * num_heads. Received: num_heads=" +
                            std::to_string(num_heads) + ".");
    }
    const int64_t size = width / 3 / num_heads, batch = qkv.shape(0);
    shape = along ? grid_shape(batch, qkv.shape(1), qkv.shape(2), num_heads, size, along)
                  : sequence_shape(batch, qkv.shape(1), num_heads, size);
    scale = scale_of(scale_object, type, size);
    out_shape.assign(qkv.shape(), qkv.shape() + rank - 1);
    out_shape.push_back(width / 3);
    statistics_shape = {batch, num_heads, 2, shape.tokens};
    logits_shape = {batch, num_heads, shape.tokens, shape.tokens};
    if (along) {
      statistics_shape.insert(statistics_shape.begin() + 1, shape.lines);
      logits_shape.insert(logits_shape.begin() + 1, shape.lines);
    }
  }

  void check_out(const char* name, const py::array& array) const {
    check_type(name, array, "qkv", qkv);
    check_shape(name, array, out_shape);
  }
  void check_statistics(const py::array& array) const {
    if (!array.dtype().equal(accumulator(type))) {
      throw py::value_error("statistics must be what attention() returned for this qkv.");
    }
    check_shape("statistics", array, statistics_shape);
  }
};

// A bias, broadcastable to [batch, (lines,) heads, tokens, tokens].
struct Bias {
  py::object array = py::none();
  AttentionBias bias{};

  Bias(const py::object& object, const Projection& p) {
    if (object.is_none()) return;
    const py::array given = dense("bias", object);
    type_of("bias", given);
    const py::array cast = given.attr("astype")(accumulator(p.type));
    const std::vector<int64_t>& full = p.logits_shape;
    const int64_t missing = static_cast<int64_t>(full.size()) - cast.ndim();
    std::vector<int64_t> strides(full.size(), 0);
    bool fits = missing >= 0;
    for (py::ssize_t i = 0; fits && i < cast.ndim(); ++i) {
      const size_t at = static_cast<size_t>(i + missing);
      fits = cast.shape(i) == 1 || cast.shape(i) == full[at];
      if (cast.shape(i) != 1) strides[at] = cast.strides(i) / cast.itemsize();
    }
    if (!fits) {
      std::string text;
      for (const int64_t n : full) text += (text.empty() ? "" : ", ") + std::to_string(n);
      throw py::value_error("bias must broadcast to [" + text + "]. Received shape: " +
                            shape_text(given) + ".");
    }
    const size_t heads = full.size() - 3;
    bias = {cast.data(), strides[0], heads == 2 ? strides[1] : 0, strides[heads],
            strides[heads + 1], strides[heads + 2]};
    array = cast;
  }
};

py::tuple attention(const py::object& qkv, int64_t num_heads, const py::object& bias,
                    const py::object& axis, const py::object& scale, int threads) {
  const Projection p(qkv, num_heads, axis, scale);
  const Bias b(bias, p);
  py::array out = empty(p.out_shape, p.qkv.dtype());
  py::array statistics = empty(p.statistics_shape, accumulator(p.type));
  void *to = out.mutable_data(), *statistics_to = statistics.mutable_data();
  Threads pool(threads);
  Result result;
  {
    py::gil_scoped_release release;
    result = attention_forward(p.type, p.shape, p.scale, p.qkv.data(), b.bias, to, statistics_to,
                               pool.parallel_for());
  }
  check(result);
  return py::make_tuple(out, statistics);
}

py::array attention_gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                             const py::object& statistics, const py::object& d_out,
                             const py::object& bias, const py::object& axis,
                             const py::object& scale, int threads) {
  const Projection p(qkv, num_heads, axis, scale);
  const Bias b(bias, p);
  const py::array forward = dense("out", out), gradient = dense("d_out", d_out);
  const py::array kept = dense("statistics", statistics);
  p.check_out("out", forward);
  p.check_out("d_out", gradient);
  p.check_statistics(kept);
  py::array d_qkv = empty({p.qkv.shape(), p.qkv.shape() + p.qkv.ndim()}, p.qkv.dtype());
  void* to = d_qkv.mutable_data();
  Threads pool(threads);
  Result result;
  {
    py::gil_scoped_release release;
    result = attention_backward(p.type, p.shape, p.scale, p.qkv.data(), b.bias, forward.data(),
                                kept.data(), gradient.data(), to, pool.parallel_for());
  }
  check(result);
  return d_qkv;
}

py::array bias_gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                        const py::object& statistics, const py::object& d_out,
                        const py::object& bias, const py::object& axis, const py::object& scale,
                        int threads) {
  const Projection p(qkv, num_heads, axis, scale);
  const Bias b(bias, p);
  if (b.array.is_none()) throw py::value_error("bias must be an array. Received: None.");
  const py::array forward = dense("out", out), gradient = dense("d_out", d_out);
  const py::array kept = dense("statistics", statistics);
  p.check_out("out", forward);
  p.check_out("d_out", gradient);
  p.check_statistics(kept);
  const py::array like = b.array;
  py::array d_bias = empty({like.shape(), like.shape() + like.ndim()}, like.dtype());
  void* to = d_bias.mutable_data();
  Threads pool(threads);
  Result result;
  {
    py::gil_scoped_release release;
    result = attention_bias_gradient(p.type, p.shape, p.scale, p.qkv.data(), b.bias, forward.data(),
                                     kept.data(), gradient.data(), to, pool.parallel_for());
  }
  check(result);
  return d_bias;
}

py::dict taps(const py::object& qkv, int64_t num_heads, const py::object& statistics,
              const py::object& bias, const py::object& grid, const py::object& scale,
              int threads) {
  const Projection p(qkv, num_heads, py::none(), scale);
  const Bias b(bias, p);
  const py::array kept = dense("statistics", statistics);
  p.check_statistics(kept);
  const std::vector<int64_t> per_head = {p.shape.batch, p.shape.heads};
  py::array class_row = empty({p.shape.batch, p.shape.heads, p.shape.tokens}, accumulator(p.type));
  py::array entropy = empty(per_head, accumulator(p.type));
  py::array distance = empty(per_head, accumulator(p.type));
  AttentionTaps to{class_row.mutable_data(), nullptr, entropy.mutable_data(), 0, 0};
  if (!grid.is_none()) {
    const auto [rows, columns] = grid_of(grid, p.shape.tokens);
    to.distance = distance.mutable_data();
    to.rows = rows;
    to.columns = columns;
  }
  Threads pool(threads);
  Result result;
  {
    py::gil_scoped_release release;
    result = attention_taps(p.type, p.shape, p.scale, p.qkv.data(), b.bias, kept.data(), to,
                            pool.parallel_for());
  }
  check(result);
  py::dict found;
  found["class_row"] = class_row;
  found["entropy"] = entropy;
  if (to.distance) found["distance"] = distance;
  return found;
}

// Images and the kernel that embeds them, with what else a call of patch_embed is given.
struct Patches {
  py::array images, kernel;
  DType image_type, type;
  PatchShape shape;

  Patches(const py::object& image_object, const py::object& kernel_object, int64_t prefix)
      : images(dense("images", image_object)),
        kernel(dense("kernel", kernel_object)),
        image_type(type_of("images", images, true)),
        type(type_of("kernel", kernel)) {
    check_isa();
    if (images.ndim() != 4) {
      throw py::value_error("images must be [B, H, W, C]. Received shape: " + shape_text(images) +
                            ".");
    }
    if (kernel.ndim() != 4 || kernel.shape(0) != kernel.shape(1) || kernel.shape(0) < 1 ||
        kernel.shape(2) != images.shape(3)) {
      throw py::value_error("kernel must be [P, P, C, D] with the channels of images, " +
                            std::to_string(images.shape(3)) + ". Received shape: " +
                            shape_text(kernel) + ".");
    }
    shape = {images.shape(0), images.shape(1), images.shape(2), images.shape(3),
             kernel.shape(0), kernel.shape(3), prefix};
    if (shape.height < shape.patch_size || shape.width < shape.patch_size) {
      throw py::value_error("images of " + std::to_string(shape.height) + " x " +
                            std::to_string(shape.width) + " pixels hold no patch of " +
                            std::to_string(shape.patch_size) + " x " +
                            std::to_string(shape.patch_size) + ".");
    }
  }

  // A table of the kernel's dtype, or None.
  const void* table(const char* name, const py::object& object, py::array& keep,
                    const std::vector<int64_t>& expected) const {
    if (object.is_none()) return nullptr;
    keep = dense(name, object);
    check_type(name, keep, "kernel", kernel);
    check_shape(name, keep, expected);
    return keep.data();
  }
};

py::array patch_embed(const py::object& images, const py::object& kernel, const py::object& bias,
                      double scale, double offset, const py::object& prefix,
                      const py::object& position, int threads) {
  int64_t rows = 0;
  if (!prefix.is_none()) {
    const py::array table = dense("prefix", prefix);
    if (table.ndim() != 2) {
      throw py::value_error("prefix must be [T, D]. Received shape: " + shape_text(table) + ".");
    }
    rows = table.shape(0);
  }
  const Patches p(images, kernel, rows);
  py::array bias_array, prefix_array, position_array;
  const int64_t width = p.shape.features;
  const void* bias_data = p.table("bias", bias, bias_array, {width});
  if (!bias_data) throw py::value_error("bias must be [D]. Received: None.");
  const void* prefix_data = p.table("prefix", prefix, prefix_array, {rows, width});
  const void* position_data =
      p.table("position", position, position_array, {p.shape.tokens(), width});
  py::array tokens = empty({p.shape.batch, p.shape.tokens(), width}, p.kernel.dtype());
  void* to = tokens.mutable_data();
  Threads pool(threads);
  Result result;
  {
    py::gil_scoped_release release;
    result = patch_embed_forward(p.image_type, p.type, p.shape, p.images.data(), scale, offset,
                                 p.kernel.data(), bias_data, prefix_data, position_data, to,
                                 pool.parallel_for());
  }
  check(result);
  return tokens;
}

py::dict patch_embed_gradient(const py::object& images, const py::object& kernel,
                              const py::object& d_tokens, double scale, double offset,
                              int64_t prefix, int threads) {
  if (prefix < 0) {
    throw py::value_error("prefix must be a number of tokens. Received: " +
                          std::to_string(prefix) + ".");
  }
  const Patches p(images, kernel, prefix);
  const int64_t width = p.shape.features;
  py::array d = dense("d_tokens", d_tokens);
  check_type("d_tokens", d, "kernel", p.kernel);
  check_shape("d_tokens", d, {p.shape.batch, p.shape.tokens(), width});
  py::dict found;
  PatchGradients to{};
  const auto add = [&found](const char* name, std::vector<int64_t> shape, const py::dtype& type) {
    py::array array = empty(shape, type);
    found[name] = array;
    return array.mutable_data();
  };
  if (p.image_type != DType::kUint8) {
    to.images = add("images", {p.images.shape(), p.images.shape() + 4}, p.images.dtype());
  }
  to.kernel = add("kernel", {p.kernel.shape(), p.kernel.shape() + 4}, p.kernel.dtype());
  to.bias = add("bias", {width}, p.kernel.dtype());
  to.prefix = prefix ? add("prefix", {prefix, width}, p.kernel.dtype()) : nullptr;
  to.position = add("position", {p.shape.tokens(), width}, p.kernel.dtype());
  Threads pool(threads);
  Result result;
  {
    py::gil_scoped_release release;
    result = patch_embed_backward(p.image_type, p.type, p.shape, p.images.data(), scale, offset,
                                  p.kernel.data(), d.data(), to, pool.parallel_for());
  }
  check(result);
  return found;
}

py::array extract(const py::object& object, int64_t patch_size, int threads) {
  const py::array images = dense("images", object);
  check_isa();
  // Elements are copied as bytes, and bytes of Python's objects would not count as references.
  if (images.dtype().attr("hasobject").cast<bool>()) {
    throw py::value_error("images has dtype " +
                          py::str(images.dtype().attr("name")).cast<std::string>() +
                          ", whose elements are Python objects. Cast it to numbers.");
  }
  if (images.ndim() != 4 || patch_size < 1 || images.shape(1) < patch_size ||
      images.shape(2) < patch_size) {
    throw py::value_error("images must be [B, H, W, C] with sides of at least patch_size=" +
                          std::to_string(patch_size) + ", which is at least 1. Received shape: " +
                          shape_text(images) + ".");
  }
  const PatchShape shape{images.shape(0), images.shape(1), images.shape(2), images.shape(3),
                         patch_size,      0,               0};
  py::array patches =
      empty({shape.batch, shape.patches(), shape.patch_elements()}, images.dtype());
  void* to = patches.mutable_data();
  const int64_t element = images.itemsize();
  Threads pool(threads);
  {
    py::gil_scoped_release release;
    extract_patches(element, shape, images.data(), to, pool.parallel_for());
  }
  return patches;
}

py::list available_isas() {
  py::list names;
  for (int i = 0; i < kIsaCount; ++i) {
    if (isa_available(static_cast<Isa>(i))) names.append(isa_name(static_cast<Isa>(i)));
  }
  return names;
}

std::string isa() {
  check_isa();
  return isa_name(current_isa());
}

}  // namespace

}  // namespace vit

PYBIND11_MODULE(_vit_kernels, m) {
  namespace py = pybind11;
  using py::arg;
  m.doc() =
      "The kernels of custom_ops without TensorFlow.\n\n"
      "Arrays are NumPy's, or anything that speaks DLPack: float16, bfloat16 (ml_dtypes), float32 or\n"
      "float64. `threads` of 0 takes one per processor. Results do not depend on it. Wrong input\n"
      "raises ValueError. What is computed: see custom_ops.attention and custom_ops.patch_embed.";
  m.def("attention", &vit::attention, arg("qkv"), arg("num_heads"), py::kw_only(),
        arg("bias") = py::none(), arg("axis") = py::none(), arg("scale") = py::none(),
        arg("threads") = 0,
        "Returns (out, statistics) of multi-head attention over a packed projection [B, N, 3 D],\n"
        "or with axis=1|2 along that axis of [B, R, C, 3 D]. scale=None is 1 / sqrt(D / H). The\n"
        "other functions need the statistics, [B, (lines,) H, 2, N]: the largest logit of every\n"
        "query (without a bias the largest q k) and log2 of the sum of exp(logit - largest).");
  m.def("attention_gradient", &vit::attention_gradient, arg("qkv"), arg("num_heads"), arg("out"),
        arg("statistics"), arg("d_out"), py::kw_only(), arg("bias") = py::none(),
        arg("axis") = py::none(), arg("scale") = py::none(), arg("threads") = 0,
        "Returns the gradient of qkv for d_out.");
  m.def("attention_bias_gradient", &vit::bias_gradient, arg("qkv"), arg("num_heads"), arg("out"),
        arg("statistics"), arg("d_out"), py::kw_only(), arg("bias"), arg("axis") = py::none(),
        arg("scale") = py::none(), arg("threads") = 0,
        "Returns the gradient of the bias, of its shape, float32 or float64.");
  m.def("attention_taps", &vit::taps, arg("qkv"), arg("num_heads"), arg("statistics"),
        py::kw_only(), arg("bias") = py::none(), arg("grid") = py::none(),
        arg("scale") = py::none(), arg("threads") = 0,
        "Returns a dict of class_row [B, H, N], entropy [B, H] and, with grid=(rows, columns),\n"
        "distance [B, H].");
  m.def("patch_embed", &vit::patch_embed, arg("images"), arg("kernel"), arg("bias"), py::kw_only(),
        arg("scale") = 1.0, arg("offset") = 0.0, arg("prefix") = py::none(),
        arg("position") = py::none(), arg("threads") = 0,
        "Returns the tokens [B, T + N, D] of images [B, H, W, C], uint8 or float.");
  m.def("patch_embed_gradient", &vit::patch_embed_gradient, arg("images"), arg("kernel"),
        arg("d_tokens"), py::kw_only(), arg("scale") = 1.0, arg("offset") = 0.0,
        arg("prefix") = 0, arg("threads") = 0,
        "Returns a dict of the gradients of images (if float), kernel, bias, prefix and position;\n"
        "`prefix` is the number of prefix tokens.");
  m.def("extract_patches", &vit::extract, arg("images"), arg("patch_size"), py::kw_only(),
        arg("threads") = 0, "Returns the patches [B, N, P * P * C] of images [B, H, W, C].");
  m.def("isa", &vit::isa, "Returns the instruction set in use; VIT_ISA forces one.");
  m.def("available_isas", &vit::available_isas, "Returns the names of those that can be used here.");
}
