// The kernels as a Python module, `import _vit_kernels`, which needs NumPy but not TensorFlow.
#include <string>

#include "custom_ops/cpu/isa.h"
#include "custom_ops/python/numpy_ops.h"

PYBIND11_MODULE(_vit_kernels, m) {
  namespace py = pybind11;
  using py::arg;
  m.doc() =
      "The kernels of custom_ops without TensorFlow.\n\n"
      "Arrays are NumPy arrays, or objects that support DLPack: float16, bfloat16 (ml_dtypes),\n"
      "float32 or float64. threads is at most 1024, and 0 uses one thread per core; results\n"
      "do not depend on the number of threads. On x86-64 subnormal numbers are read as 0, and\n"
      "where a result would be subnormal it is 0; extract_patches copies them. Wrong input raises\n"
      "ValueError. custom_ops.attention and custom_ops.patch_embed document the computations.";
  m.def("attention", &vit::attention, arg("qkv"), arg("num_heads"), py::kw_only(),
        arg("bias") = py::none(), arg("axis") = py::none(), arg("scale") = py::none(),
        arg("threads") = 0,
        "Returns (out, statistics) of multi-head attention over a packed projection [B, N, 3 D],\n"
        "or with axis=1|2 along that axis of [B, R, C, 3 D]. scale=None is 1 / sqrt(D / H). The\n"
        "other functions need the statistics, [B, (lines,) H, 2, N]: the largest logit of every\n"
        "query (without a bias the largest q k times a power of two of the scale) and log2 of the\n"
        "sum of exp(logit - largest).");
  m.def("attention_gradient", &vit::gradient<vit::AttentionGrad>, arg("qkv"), arg("num_heads"),
        arg("out"), arg("statistics"), arg("d_out"), py::kw_only(), arg("bias") = py::none(),
        arg("axis") = py::none(), arg("scale") = py::none(), arg("threads") = 0,
        "Returns the gradient of qkv for d_out.");
  m.def("attention_bias_gradient", &vit::gradient<vit::AttentionBiasGrad>, arg("qkv"),
        arg("num_heads"), arg("out"), arg("statistics"), arg("d_out"), py::kw_only(), arg("bias"),
        arg("axis") = py::none(), arg("scale") = py::none(), arg("threads") = 0,
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
        arg("d_tokens"), py::kw_only(), arg("scale") = 1.0, arg("offset") = 0.0, arg("prefix") = 0,
        arg("threads") = 0,
        "Returns a dict of the gradients of images (if float), kernel, bias, prefix and position;\n"
        "`prefix` is the number of prefix tokens.");
  m.def("extract_patches", &vit::extract, arg("images"), arg("patch_size"), py::kw_only(),
        arg("threads") = 0, "Returns the patches [B, N, P * P * C] of images [B, H, W, C].");
  m.def(
      "isa",
      [] {
        vit::check_isa();
        return vit::isa_name(vit::current_isa());
      },
      "Returns the instruction set in use. VIT_ISA names one when the module is imported.");
  m.def(
      "choose_isa",
      [](const std::string& name) {
        if (const char* error = vit::choose_isa(name.c_str())) {
          throw py::value_error("choose_isa(" + vit::repr(py::str(name)) + "): " + error);
        }
      },
      arg("name"), "Sets the instruction set of later calls; \"\" is the best one here.");
  m.def(
      "available_isas",
      [] {
        py::list names;
        for (int i = 0; i < vit::kIsaCount; ++i) {
          const auto isa = static_cast<vit::Isa>(i);
          if (vit::isa_available(isa)) names.append(vit::isa_name(isa));
        }
        return names;
      },
      "Returns the names of the instruction sets that can be used here.");
}
