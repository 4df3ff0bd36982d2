// Scenarios of the patch embedding for a Device: Cpu of devices.h or Gpu of gpu_scratch.h.
#ifndef TESTS_CC_PATCH_SCENARIOS_H_
#define TESTS_CC_PATCH_SCENARIOS_H_

#include <algorithm>
#include <iterator>
#include <vector>

#include "tests/cc/devices.h"
#include "tests/cc/patch_case.h"

namespace vit_test {

using vit::DType;

// Compares a case with the oracle, and on a GPU both orders of warps and blocks.
template <class Device>
void compare(const PatchCase& problem, const char* what, int shift) {
  const PatchExpected expected = patch_oracle(problem);
  PatchRun run(problem, shift), reversed(problem, shift);
  Device::for_each([&] {
    say(what, Device::name(), problem);
    run.all(execution(Device::where()));
    run.expect(expected);
    Device::in_reverse([&] {
      reversed.all(execution(Device::where()));
      reversed.expect_same(run);
    });
  });
}

// Every pair of types, with and without left-over pixels and positions. On a GPU most tensors are
// aligned, so that they are read with vectors.
template <class Device>
void test_sizes(const std::vector<vit::PatchShape>& shapes) {
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType image_type : Device::kImageTypes) {
      for (DType type : Device::kTypes) {
        Random random(static_cast<uint64_t>(++turn));
        const int shift = Device::kIsGpu ? turn % 4 == 1 : turn % 6;
        compare<Device>(make(random, image_type, type, shape, turn % 3), "sizes", shift);
      }
    }
  }
}

template <class Device>
void test_large(const std::vector<vit::PatchShape>& shapes) {
  int turn = 0;
  const int types = static_cast<int>(std::size(Device::kImageTypes));
  for (const vit::PatchShape& shape : shapes) {
    for (DType type : Device::kTypes) {
      Random random(static_cast<uint64_t>(++turn));
      const int shift = Device::kIsGpu ? turn % 2 == 0 : 1;
      compare<Device>(make(random, Device::kImageTypes[turn % types], type, shape), "large", shift);
    }
  }
}

// An empty result, or empty sums: their gradients are zero.
template <class Device>
void test_no_elements() {
  const vit::PatchShape shapes[] = {
      // batch, height, width, channels, patch_size, features, prefix
      {0, 8, 8, 3, 4, 5, 1}, {2, 3, 8, 3, 4, 5, 1}, {2, 8, 3, 3, 4, 5, 1}, {2, 3, 3, 1, 4, 5, 0},
      {2, 0, 8, 3, 4, 5, 1}, {2, 8, 0, 3, 4, 5, 0}, {2, 8, 8, 0, 4, 5, 1}, {2, 9, 8, 3, 4, 0, 1},
  };
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType image_type : Device::kImageTypes) {
      for (DType type : Device::kTypes) {
        Random random(static_cast<uint64_t>(++turn));
        compare<Device>(make(random, image_type, type, shape, turn % 2), "no elements", turn % 2);
      }
    }
  }
}

// Gradients that are not requested are not written, and do not change the others.
template <class Device>
void test_wanted() {
  for (DType type : Device::kTypes) {
    Random random(7);
    const PatchCase problem = make(random, type, type, {2, 9, 8, 3, 4, 21, 2});
    PatchRun all(problem, 1), some(problem, 1);
    Device::for_each([&] {
      all.all(execution(Device::where()));
      for (int wanted = 0; wanted < 32; ++wanted) {
        say("some gradients", Device::name(), problem);
        some.all(execution(Device::where()), wanted);
        for (size_t i = 0; i < 5; ++i) {
          Tensor& tensor = *some.results()[i];
          if (wanted >> i & 1) {
            EXPECT(tensor == *all.results()[i], "gradient %zu differs, wanted %d", i, wanted);
          } else {
            const uint8_t* bytes = static_cast<const uint8_t*>(tensor.data());
            const bool kept =
                std::all_of(bytes, bytes + tensor.bytes(), [](uint8_t x) { return x == kNan; });
            EXPECT(kept, "gradient %zu is written, wanted %d", i, wanted);
          }
        }
      }
    });
  }
}

// Whether each pixel is one of elements `first` to `last` of patches `begin` to `end` of image `b`.
inline void mark(std::vector<bool>& pixels, const vit::PatchShape& s, int64_t b, int64_t begin,
                 int64_t end, int64_t first, int64_t last) {
  for (int64_t patch = begin; patch <= end; ++patch) {
    for (int64_t i = first; i <= last; ++i) {
      pixels[static_cast<size_t>(pixel_place(s, b, patch, i))] = true;
    }
  }
}

// Pixels beyond the grid are never read, and their gradient is zero.
template <class Device>
void test_left_over_pixels() {
  for (DType type : Device::kTypes) {
    Random random(8);
    const PatchCase problem = make(random, type, type, {2, 11, 13, 3, 4, 9, 1});
    const vit::PatchShape& s = problem.shape;
    PatchRun clean(problem, Device::kShift), dirty(problem, Device::kShift);
    std::vector<bool> read(static_cast<size_t>(problem.pixels()));
    for (int64_t b = 0; b < s.batch; ++b) {
      mark(read, s, b, 0, s.patches() - 1, 0, s.patch_elements() - 1);
    }
    for (int64_t i = 0; i < problem.pixels(); ++i) {
      if (!read[static_cast<size_t>(i)]) dirty.images.set(i, i % 2 ? NAN : HUGE_VAL);
    }
    Device::for_each([&] {
      say("left over pixels", Device::name(), problem);
      clean.all(execution(Device::where()));
      dirty.all(execution(Device::where()));
      dirty.expect_same(clean);
    });
  }
}

// Elements of `after` that depend on an element that is not finite are not finite either. All
// others keep their bits.
template <class Reached>
void expect_reached(const char* what, const Tensor& before, const Tensor& after,
                    const Reached& reached) {
  for (int64_t i = 0; i < before.count(); ++i) {
    const bool right = reached(i) ? !isfinite(after.at(i)) : after.at(i) == before.at(i);
    EXPECT(right, "%s[%lld] was %g and is %g", what, number(i), before.at(i), after.at(i));
  }
}

template <class Device>
void test_not_finite() {
  for (DType type : Device::kTypes) {
    Random random(12);
    const PatchCase problem =
        make(random, type, type, {2, 9, 12, 3, 3, Device::kIsGpu ? 24 : 21, 1});
    const vit::PatchShape& s = problem.shape;
    const int64_t f = s.features, image = 1, patch = 7, element = 10, feature = 4;
    const int64_t token = image * s.tokens() + s.prefix + patch;
    const auto never = [](int64_t) { return false; };
    std::vector<bool> of_element(static_cast<size_t>(problem.pixels())), of_patch = of_element;
    for (int64_t b = 0; b < s.batch; ++b) {
      mark(of_element, s, b, 0, s.patches() - 1, element, element);
    }
    mark(of_patch, s, image, patch, patch, 0, s.patch_elements() - 1);
    for (double poison : {double{NAN}, HUGE_VAL}) {
      Device::for_each([&] {
        const int shift = Device::kShift;
        PatchRun before(problem, shift), pixel(problem, shift), weight(problem, shift);
        PatchRun pull(problem, shift);
        before.all(execution(Device::where()));
        say("a pixel that is not finite", Device::name(), problem);
        pixel.images.set(pixel_place(s, image, patch, element), poison);
        pixel.all(execution(Device::where()));
        expect_reached("tokens", before.tokens, pixel.tokens,
                       [&](int64_t i) { return i / f == token; });
        expect_reached("d_kernel", before.d_kernel, pixel.d_kernel,
                       [&](int64_t i) { return i / f == element; });
        expect_reached("d_images", before.d_images, pixel.d_images, never);

        say("a weight that is not finite", Device::name(), problem);
        weight.kernel.set(element * f + feature, poison);
        weight.all(execution(Device::where()));
        expect_reached("tokens", before.tokens, weight.tokens, [&](int64_t i) {
          return i % f == feature && i / f % s.tokens() >= s.prefix;
        });
        expect_reached("d_images", before.d_images, weight.d_images,
                       [&](int64_t i) { return of_element[static_cast<size_t>(i)]; });
        expect_reached("d_kernel", before.d_kernel, weight.d_kernel, never);

        say("a gradient that is not finite", Device::name(), problem);
        pull.d_tokens.set(token * f + feature, poison);
        pull.all(execution(Device::where()));
        expect_reached("d_images", before.d_images, pull.d_images,
                       [&](int64_t i) { return of_patch[static_cast<size_t>(i)]; });
        expect_reached("d_kernel", before.d_kernel, pull.d_kernel,
                       [&](int64_t i) { return i % f == feature; });
        expect_reached("d_bias", before.d_bias, pull.d_bias,
                       [&](int64_t i) { return i == feature; });
        expect_reached("d_prefix", before.d_prefix, pull.d_prefix, never);
        expect_reached("d_position", before.d_position, pull.d_position,
                       [&](int64_t i) { return i == (s.prefix + patch) * f + feature; });
      });
    }
  }
}

}  // namespace vit_test

#endif  // TESTS_CC_PATCH_SCENARIOS_H_
