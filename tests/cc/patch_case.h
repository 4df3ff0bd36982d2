// Cases of the patch embedding, for the tests of CPUs and of GPUs.
#ifndef TESTS_CC_PATCH_CASE_H_
#define TESTS_CC_PATCH_CASE_H_

#include <type_traits>
#include <vector>

#include "tests/cc/patch_oracle.h"

namespace vit_test {

inline std::vector<double> normals(Random& random, vit::DType type, int64_t count) {
  std::vector<double> result(static_cast<size_t>(count));
  for (double& x : result) x = rounded_to(type, random.normal());
  return result;
}

inline PatchCase make(Random& random, vit::DType image_type, vit::DType type,
                      const vit::PatchShape& shape, bool has_position = true) {
  PatchCase p = {image_type, type, shape, 1, 0, has_position, {}, {}, {}, {}, {}, {}};
  if (image_type == vit::DType::kUint8) {
    p.scale = static_cast<double>(1 / 127.5f);
    p.offset = -1;
    p.images.resize(static_cast<size_t>(p.pixels()));
    for (double& x : p.images) x = static_cast<double>(random.below(256));
  } else {
    if (random.below(2)) p.scale = 0.375;
    if (random.below(2)) p.offset = 0.3125;
    p.images = normals(random, image_type, p.pixels());
  }
  p.kernel = normals(random, type, p.kernel_size());
  p.bias = normals(random, type, shape.features);
  p.prefix = normals(random, type, shape.prefix * shape.features);
  p.position = normals(random, type, p.table_size());
  p.d_tokens = normals(random, type, p.token_count());
  return p;
}

inline void say(const char* what, const char* on, const PatchCase& p) {
  const vit::PatchShape& s = p.shape;
  testing(
      "%s: %s, %s images, %s kernel, %lld x %lld x %lld x %lld, patches of %lld, "
      "%lld features, prefix %lld, position %d",
      what, on, name(p.image_type), name(p.type), number(s.batch), number(s.height),
      number(s.width), number(s.channels), number(s.patch_size), number(s.features),
      number(s.prefix), p.has_position);
}

// Extracts and restores patches of many shapes and sizes of elements. `run` gets a function that
// does it with an execution.
template <class Run>
void expect_cutting(Random& random, const Run& run) {
  const vit::PatchShape shapes[] = {
      {1, 1, 1, 1, 1, 0, 0}, {2, 7, 9, 3, 2, 0, 0},    {3, 16, 8, 1, 8, 0, 0},
      {0, 8, 8, 3, 4, 0, 0}, {2, 3, 8, 3, 4, 0, 0},    {2, 8, 3, 3, 4, 0, 0},
      {2, 8, 8, 0, 4, 0, 0}, {2, 17, 33, 4, 16, 0, 0},
  };
  for (const vit::PatchShape& s : shapes) {
    for (int64_t size : {1, 2, 3, 4, 8, 16}) {
      testing("cutting: %lld x %lld x %lld x %lld, patches of %lld, elements of %lld bytes",
              number(s.batch), number(s.height), number(s.width), number(s.channels),
              number(s.patch_size), number(size));
      const int64_t pixels = s.batch * s.height * s.width * s.channels;
      const int64_t elements = s.batch * s.patches() * s.patch_elements();
      const int shift = static_cast<int>(random.below(4) * size);  // in bytes
      std::vector<double> bytes(static_cast<size_t>(pixels * size));
      for (double& x : bytes) x = static_cast<double>(random.below(256));
      Tensor images(vit::DType::kUint8, bytes, shift);
      Tensor patches(vit::DType::kUint8, elements * size, Tensor::kOutput, shift);
      Tensor restored(vit::DType::kUint8, pixels * size, Tensor::kOutput, shift);
      run([&](const auto& execution) {
        const vit::PatchCopyProblem extract = {s, size, images.data(), patches.data()};
        const vit::PatchCopyProblem restore = {s, size, patches.data(), restored.data()};
        using Result = typename std::decay_t<decltype(execution)>::Result;
        const bool ok = extract_patches(extract, execution) == Result::kOk &&
                        restore_patches(restore, execution) == Result::kOk;
        EXPECT(ok, "a kernel reports that it failed");
      });

      std::vector<double> expected(bytes.size(), 0.0);
      int64_t differences = 0;
      for (int64_t i = 0; i < elements; ++i) {
        const int64_t patch = i / s.patch_elements();
        const int64_t pixel =
            pixel_place(s, patch / s.patches(), patch % s.patches(), i % s.patch_elements());
        for (int64_t j = 0; j < size; ++j) {
          const double want = bytes[static_cast<size_t>(pixel * size + j)];
          expected[static_cast<size_t>(pixel * size + j)] = want;
          differences += patches.at(i * size + j) != want;
        }
      }
      EXPECT(differences == 0, "%lld bytes of patches are wrong", number(differences));
      for (int64_t i = 0; i < pixels * size; ++i) {
        differences += restored.at(i) != expected[static_cast<size_t>(i)];
      }
      EXPECT(differences == 0, "%lld restored bytes are wrong", number(differences));
      EXPECT(images.intact() && patches.intact() && restored.intact(), "wrong bytes are written");
    }
  }
}

}  // namespace vit_test

#endif  // TESTS_CC_PATCH_CASE_H_
