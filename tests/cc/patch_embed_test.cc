// The patch embedding against loops over doubles, and the extraction of patches against its
// definition. Kernels write nothing outside of their outputs, nothing outside of the inputs has an
// effect, and the number of threads changes no bit.
#include <algorithm>

#include "tests/cc/patch_case.h"
#include "tests/cc/threads.h"

namespace {

using namespace vit_test;
using vit::DType;

void compare(const PatchCase& problem, const char* what, int shift) {
  const PatchExpected expected = patch_oracle(problem);
  PatchRun run(problem, shift);
  for_each_isa([&] {
    say(what, isa(), problem);
    run.all(vit::serial());
    run.expect(expected);
  });
}

// Every pair of types, with sizes around the widths of vectors, with and without left-over pixels.
void test_sizes() {
  const vit::PatchShape shapes[] = {
      // batch, height, width, channels, patch_size, features, prefix
      {1, 1, 1, 1, 1, 1, 0},    {2, 7, 9, 3, 2, 5, 1},     {3, 16, 8, 1, 8, 16, 0},
      {1, 13, 17, 3, 4, 33, 2}, {2, 6, 34, 5, 3, 64, 1},   {1, 32, 33, 3, 16, 65, 1},
      {1, 8, 130, 2, 2, 17, 3}, {2, 14, 14, 3, 7, 130, 1}, {5, 4, 4, 4, 4, 15, 1},
  };
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType image_type : kImageTypes) {
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(++turn));
        compare(make(random, image_type, type, shape, turn % 3), "sizes", turn % 6);
      }
    }
  }
}

// Several blocks of rows and of columns, panels of more than one block, rectangles of the kernel.
void test_large() {
  const vit::PatchShape shapes[] = {
      {2, 60, 60, 1, 4, 20, 1},    // 450 rows, so sums of 450 products for d_kernel
      {1, 19, 19, 3, 19, 40, 0},   // 1083 elements of a patch
      {1, 4, 4, 1, 2, 1090, 1},    // 1090 features
      {1, 36, 36, 3, 9, 280, 1},   // rectangles: 243 x 280
  };
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType type : kFloatTypes) {
      Random random(static_cast<uint64_t>(++turn));
      compare(make(random, kImageTypes[turn % 5], type, shape), "large", 1);
    }
  }
}

// An empty result, or empty sums: their gradients are zero.
void test_no_elements() {
  const vit::PatchShape shapes[] = {
      {0, 8, 8, 3, 4, 5, 1}, {2, 3, 8, 3, 4, 5, 1}, {2, 8, 3, 3, 4, 5, 1}, {2, 3, 3, 1, 4, 5, 0},
      {2, 0, 8, 3, 4, 5, 1}, {2, 8, 0, 3, 4, 5, 0}, {2, 8, 8, 0, 4, 5, 1}, {2, 8, 8, 3, 4, 0, 1},
  };
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType image_type : kImageTypes) {
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(++turn));
        compare(make(random, image_type, type, shape, turn % 2), "no elements", turn % 2);
      }
    }
  }
}

// Gradients that are not requested are not written, and do not change the others.
void test_wanted() {
  for (DType type : kFloatTypes) {
    Random random(7);
    const PatchCase problem = make(random, type, type, {2, 9, 8, 3, 4, 21, 2});
    PatchRun all(problem, 1), some(problem, 1);
    for_each_isa([&] {
      all.all(vit::serial());
      for (int wanted = 0; wanted < 32; ++wanted) {
        say("some gradients", isa(), problem);
        some.all(vit::serial(), wanted);
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

// Pixels beyond the grid are never read, and their gradient is zero.
void test_left_over_pixels() {
  for (DType type : kFloatTypes) {
    Random random(8);
    const PatchCase problem = make(random, type, type, {2, 11, 13, 3, 4, 9, 1});
    const vit::PatchShape& s = problem.shape;
    PatchRun clean(problem, 1), dirty(problem, 1);
    std::vector<bool> read(static_cast<size_t>(problem.pixels()));
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t patch = 0; patch < s.patches(); ++patch) {
        for (int64_t i = 0; i < s.patch_elements(); ++i) {
          read[static_cast<size_t>(pixel_place(s, b, patch, i))] = true;
        }
      }
    }
    for (int64_t i = 0; i < problem.pixels(); ++i) {
      if (!read[static_cast<size_t>(i)]) dirty.images.set(i, i % 2 ? NAN : HUGE_VAL);
    }
    for_each_isa([&] {
      say("left over pixels", isa(), problem);
      clean.all(vit::serial());
      dirty.all(vit::serial());
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
    EXPECT(right, "%s[%lld] was %g and is %g", what, static_cast<long long>(i), before.at(i),
           after.at(i));
  }
}

void test_not_finite() {
  for (DType type : kFloatTypes) {
    Random random(12);
    const PatchCase problem = make(random, type, type, {2, 9, 12, 3, 3, 21, 1});
    const vit::PatchShape& s = problem.shape;
    const int64_t f = s.features, image = 1, patch = 7, element = 10, feature = 4;
    const int64_t token = image * s.tokens() + s.prefix + patch;
    const auto never = [](int64_t) { return false; };
    for (double poison : {double{NAN}, HUGE_VAL}) {
      for_each_isa([&] {
        PatchRun before(problem, 1), pixel(problem, 1), weight(problem, 1), pull(problem, 1);
        before.all(vit::serial());
        say("a pixel that is not finite", isa(), problem);
        pixel.images.set(pixel_place(s, image, patch, element), poison);
        pixel.all(vit::serial());
        expect_reached("tokens", before.tokens, pixel.tokens,
                       [&](int64_t i) { return i / f == token; });
        expect_reached("d_kernel", before.d_kernel, pixel.d_kernel,
                       [&](int64_t i) { return i / f == element; });
        expect_reached("d_images", before.d_images, pixel.d_images, never);

        say("a weight that is not finite", isa(), problem);
        weight.kernel.set(element * f + feature, poison);
        weight.all(vit::serial());
        expect_reached("tokens", before.tokens, weight.tokens, [&](int64_t i) {
          return i % f == feature && i / f % s.tokens() >= s.prefix;
        });
        std::vector<bool> at_element(static_cast<size_t>(problem.pixels()));
        for (int64_t i = 0; i < s.batch * s.patches(); ++i) {
          const int64_t place = pixel_place(s, i / s.patches(), i % s.patches(), element);
          at_element[static_cast<size_t>(place)] = true;
        }
        expect_reached("d_images", before.d_images, weight.d_images,
                       [&](int64_t i) { return at_element[static_cast<size_t>(i)]; });
        expect_reached("d_kernel", before.d_kernel, weight.d_kernel, never);

        say("a gradient that is not finite", isa(), problem);
        pull.d_tokens.set(token * f + feature, poison);
        pull.all(vit::serial());
        std::vector<bool> in_patch(static_cast<size_t>(problem.pixels()));
        for (int64_t i = 0; i < s.patch_elements(); ++i) {
          in_patch[static_cast<size_t>(pixel_place(s, image, patch, i))] = true;
        }
        expect_reached("d_images", before.d_images, pull.d_images,
                       [&](int64_t i) { return in_patch[static_cast<size_t>(i)]; });
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

void test_threads() {
  const vit::PatchShape shapes[] = {
      {3, 14, 15, 3, 7, 70, 1}, {1, 40, 40, 2, 2, 18, 2}, {2, 30, 31, 3, 15, 300, 0}};
  uint64_t seed = 0;
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType type : kFloatTypes) {
      Random random(13);
      const PatchCase problem = make(random, kImageTypes[++turn % 5], type, shape);
      PatchRun one(problem, 1), many(problem, 1);
      for_each_isa([&] {
        say("threads", isa(), problem);
        expect_same_on_threads(one, many, seed);
      });
    }
  }
}

void test_out_of_memory() {
  for (DType type : kFloatTypes) {
    Random random(14);
    const PatchCase problem = make(random, type, type, {2, 8, 8, 3, 4, 21, 1});
    PatchRun run(problem, 0);
    for_each_isa([&] {
      say("no memory", isa(), problem);
      scratch_use().refuse = true;
      const vit::Result out_of_memory = vit::Result::kOutOfMemory;
      EXPECT(run.forward(vit::serial()) == out_of_memory, "forward does not report it");
      EXPECT(run.backward(1, backwards()) == out_of_memory, "d_images does not report it");
      EXPECT(run.backward(2, vit::serial()) == out_of_memory, "d_kernel does not report it");
      scratch_use().refuse = false;
      run.expect_intact();
    });
  }
}

void test_cutting() {
  Random random(15);
  expect_cutting(random, [&](const auto& cut) {
    Shuffled shuffled(random.bits(), 3);
    cut(execution(shuffled.parallel_for()));
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "large")) test_large();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  if (wanted(argc, argv, "wanted")) test_wanted();
  if (wanted(argc, argv, "left_over_pixels")) test_left_over_pixels();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "out_of_memory")) test_out_of_memory();
  if (wanted(argc, argv, "cutting")) test_cutting();
  return finish();
}
