// The kernels for GPUs as a Python module, `import _vit_cuda`, which needs neither a framework nor
// NumPy: arrays are addresses of memory of the GPU.
#include "custom_ops/python/device_ops.h"

namespace py = pybind11;
using py::arg;

namespace {

// Types are local to the module, so that a process can load several builds of it.
void define_arguments(py::module_& m) {
  using vit::DeviceArray;
  py::class_<DeviceArray>(m, "Array", "Memory of a GPU, dense and in row-major order.",
                          py::module_local())
      .def(py::init<uintptr_t, std::vector<int64_t>, std::string>(), arg("address"), arg("shape"),
           arg("dtype"),
           "`dtype` is a name of NumPy, or bfloat16. The caller keeps the memory until the work\n"
           "that reads or writes it is done.")
      .def_property_readonly("address", &DeviceArray::address)
      .def_property_readonly("shape", &DeviceArray::shape)
      .def_property_readonly("dtype", &DeviceArray::dtype);
  py::class_<vit::DeviceExecution>(
      m, "Execution", "Where work runs: on the GPU that holds the arrays.", py::module_local())
      .def(py::init<uintptr_t, py::function>(), arg("stream"), arg("allocate"),
           "`stream` is the address of a CUDA stream of this GPU, 0 for the default one.\n"
           "`allocate(bytes)` returns the address of scratch memory of this GPU, which is then\n"
           "the current one, aligned to 16 bytes, that stays valid for the work that the call\n"
           "starts on the stream.");
}

void define_attention(py::module_& m) {
  using vit::DeviceAttention;
  py::class_<DeviceAttention>(m, "Attention", "Multi-head attention over a packed projection.",
                              py::module_local())
      .def(py::init<const vit::DeviceArray&, int64_t, const vit::DeviceArray*, const py::object&,
                    const py::object&>(),
           arg("qkv"), arg("num_heads"), py::kw_only(), arg("bias") = nullptr,
           arg("axis") = py::none(), arg("scale") = py::none(),
           "qkv is [B, N, 3 D], or with axis=1|2 [B, R, C, 3 D] with attention along that axis.\n"
           "bias broadcasts to [B, (lines,) H, N, N] and is float32. scale=None is\n"
           "1 / sqrt(D / H).")
      .def("forward", &DeviceAttention::forward, arg("execution"), arg("out"), arg("statistics"),
           "Writes out [B, N, D] or [B, R, C, D], of the dtype of qkv, and statistics\n"
           "[B, (lines,) H, 2, N], float32, which the other functions need.")
      .def("gradient", &DeviceAttention::gradient, arg("execution"), arg("out"), arg("statistics"),
           arg("d_out"), arg("d_qkv"), "Writes the gradient of qkv for d_out.")
      .def("bias_gradient", &DeviceAttention::bias_gradient, arg("execution"), arg("out"),
           arg("statistics"), arg("d_out"), arg("d_bias"),
           "Writes the gradient of the bias, of its shape, float32.")
      .def("taps", &DeviceAttention::taps, arg("execution"), arg("statistics"), py::kw_only(),
           arg("class_row") = nullptr, arg("distance") = nullptr, arg("entropy") = nullptr,
           arg("grid") = py::none(),
           "Writes the given taps, float32: class_row [B, H, N], distance [B, H]\n"
           "for grid=(rows, columns), entropy [B, H]. Not with an axis.");
}

void define_patches(py::module_& m) {
  using vit::DevicePatchEmbed;
  py::class_<DevicePatchEmbed>(m, "PatchEmbed", "Images to tokens.", py::module_local())
      .def(py::init<const vit::DeviceArray&, const vit::DeviceArray&, double, double, int64_t>(),
           arg("images"), arg("kernel"), py::kw_only(), arg("scale") = 1.0, arg("offset") = 0.0,
           arg("prefix") = 0,
           "images are [B, H, W, C], uint8 or float; kernel is [P, P, C, D]; `prefix` is the\n"
           "number of prefix tokens T. Pixels are image * scale + offset. Tokens and tables have\n"
           "the dtype of the kernel.")
      .def("forward", &DevicePatchEmbed::forward, arg("execution"), arg("bias"), arg("tokens"),
           py::kw_only(), arg("prefix") = nullptr, arg("position") = nullptr,
           "Writes tokens [B, T + N, D] for bias [D], prefix [T, D] and position [T + N, D].")
      .def("gradient", &DevicePatchEmbed::gradient, arg("execution"), arg("d_tokens"),
           py::kw_only(), arg("images") = nullptr, arg("kernel") = nullptr, arg("bias") = nullptr,
           arg("prefix") = nullptr, arg("position") = nullptr,
           "Writes the gradients for d_tokens of those inputs that are given, each of the shape\n"
           "and dtype of the input.");
  m.def(
      "extract_patches",
      [](const vit::DeviceExecution& execution, const vit::DeviceArray& images,
         const vit::DeviceArray& patches,
         int64_t patch_size) { copy_patches(execution, images, patches, patch_size, false); },
      arg("execution"), arg("images"), arg("patches"), arg("patch_size"),
      "Copies images [B, H, W, C] to patches [B, N, P * P * C], of any dtype.");
  m.def(
      "restore_patches",
      [](const vit::DeviceExecution& execution, const vit::DeviceArray& patches,
         const vit::DeviceArray& images,
         int64_t patch_size) { copy_patches(execution, images, patches, patch_size, true); },
      arg("execution"), arg("patches"), arg("images"), arg("patch_size"),
      "Copies patches to images, with zeros in pixels that no patch covers.");
}

}  // namespace

PYBIND11_MODULE(_vit_cuda, m) {
  m.doc() =
      "The kernels of custom_ops for GPUs, without a framework.\n\n"
      "Inputs and outputs are `Array`s of float16, bfloat16 or float32; images may be uint8, and\n"
      "patches are copied in any dtype. The caller allocates both. A call checks its arguments,\n"
      "starts the work on the stream of the `Execution` and returns. Wrong arguments raise\n"
      "ValueError before any work starts, too little memory MemoryError and other errors of CUDA\n"
      "RuntimeError. custom_ops.attention and custom_ops.patch_embed document the computations.";
  define_arguments(m);
  define_attention(m);
  define_patches(m);
}
