// Attention of a GPU, under the emulation of gpu_emulation.h, against loops over doubles.
#include "custom_ops/cuda/attention/attention_geometry.h"
#include "custom_ops/cuda/device.h"
#include "tests/cc/attention_scenarios.h"
#include "tests/cc/gpu_scratch.h"

namespace {

using namespace vit_test;

// Sizes around the tiles' sizes, with different batches, axes, biases and alignments. A kernel
// without tensor cores is the same for all head sizes, which only are limits of its loops: few
// suffice.
void test_sizes() {
  int turn = 0, seed = 0;
  for (int64_t size : {1, 3, 16, 40, 64, 72, 80, 128, 136}) {
    for (int64_t tokens : {1, 7, 17, 50, 65, 130}) {
      ++turn;
      for (DType type : Gpu::kTypes) {
        ++seed;
        const bool is_tensor =
            vit::attention_path(type, size, kLeastSharedBytes) == vit::AttentionPath::kTensor;
        const bool is_large = tokens * size > 800, is_half = type == DType::kFloat16;
        if (tokens > 65 && size % 16 && size != 72) continue;
        const int pick = turn + turn / 6;
        if (!is_tensor && ((pick + is_half) % 3 || (is_large && tokens != 50))) continue;
        if (is_tensor && (tokens > 50 || tokens == 7) && pick % 2 == is_half) continue;
        Random random(static_cast<uint64_t>(seed));
        const int axis = is_large ? 0 : static_cast<int>(random.below(3));
        const int64_t batch = is_large ? 1 : 1 + random.below(2);
        const int64_t heads = is_large ? 1 : 1 + random.below(2);
        AttentionCase problem = make(random, type, shape_of(axis, batch, tokens, heads, size));
        if (random.below(2)) {
          shape_bias(problem, static_cast<int>(random.below(32)));
          fill_bias(random, problem);
        }
        set_grid(problem, 1 + turn % 4);
        compare<Gpu>(problem, "sizes", random.below(4) ? 0 : 1);
      }
    }
  }
  // Several tiles without tensor cores.
  for (DType type : Gpu::kTypes) {
    Random random(1);
    const bool is_16_bit = vit::size_of(type) == 2;
    AttentionCase problem = make(random, type, vit::sequence_shape(1, 66, 1, is_16_bit ? 136 : 67));
    if (is_16_bit) {
      shape_bias(problem, 2);
      fill_bias(random, problem);
    }
    set_grid(problem, 8);
    compare<Gpu>(problem, "sizes", 0);
  }
}

// Several blocks of queries and of keys, and several tiles in each.
void test_long_lines() {
  int turn = 0;
  for (DType type : {DType::kBfloat16, DType::kFloat16}) {
    for (int64_t size : {64, 80}) {
      Random random(3);
      AttentionCase problem =
          make(random, type, vit::sequence_shape(1, size == 64 ? 257 : 197, 1, size));
      if (++turn % 2) {
        shape_bias(problem, 3);
        fill_bias(random, problem);
      }
      set_grid(problem, 14);
      compare<Gpu>(problem, "long lines", 0);
    }
  }
}

// Lines that are enough for a GPU without smaller blocks: a block has several warps.
void test_many_lines() {
  for (int64_t size : {64, 80, 128}) {
    Random random(static_cast<uint64_t>(size));
    const DType type = size == 80 ? DType::kFloat16 : DType::kBfloat16;
    AttentionCase problem = make(random, type, vit::sequence_shape(66, 33, 2, size));
    if (size == 80) {
      shape_bias(problem, 3);
      fill_bias(random, problem);
    }
    compare<Gpu>(problem, "many lines", 0, Parts::kForwardAndTaps);
  }
}

// Several tiles share an element of the bias.
void test_bias_of_long_lines() {
  for (int mask : {0, 1, 2, 3}) {
    Random random(static_cast<uint64_t>(mask));
    AttentionCase problem =
        make(random, DType::kBfloat16, vit::sequence_shape(2, 70, 1, mask == 3 ? 80 : 16));
    shape_bias(problem, mask);
    fill_bias(random, problem);
    compare<Gpu>(problem, "bias of long lines", 0);
  }
}

// Kernels that fit less shared memory than a GPU of today has, and one that has more.
void test_shared_memory() {
  int turn = 0;
  for (int64_t bytes : {48 << 10, 227 << 10}) {
    set_most_shared_bytes(bytes);
    for (DType type : {DType::kBfloat16, DType::kFloat16}) {
      for (int64_t size : {64, 80, 128}) {
        Random random(static_cast<uint64_t>(++turn));
        AttentionCase problem = make(random, type, vit::sequence_shape(1, 17, 1, size));
        if (turn % 2) {
          shape_bias(problem, 3);
          fill_bias(random, problem);
        }
        set_grid(problem, 4);
        compare<Gpu>(problem, "shared memory", 0);
      }
    }
  }
  set_most_shared_bytes(kLeastSharedBytes);
}

// Lines with one and several tiles of 64 tokens, whole and not; blocks with a part of a line, a
// whole one and several; rings with room for less than a line, and for fewer lines than a block
// has; passes. Counters of different periods choose the rest, so that each size has both types, and
// once tensors that are not aligned, which other kernels take.
void test_warpgroups() {
  int turn = 0;
  for (int64_t tokens : {1, 7, 16, 17, 50, 63, 64, 65, 81, 128, 144, 176, 197, 300}) {
    for (int64_t size : {8, 64, 72, 80}) {
      ++turn;
      if (tokens > 65 && size % 16 && turn % 3) continue;
      // Few, and enough for a block for each tile. One has all five tiles of 300 tokens.
      constexpr int kMultiprocessors[] = {2, 64, 1};
      set_warpgroup_multiprocessors(tokens == 300 ? 1 : kMultiprocessors[turn % 3]);
      // Two slots for the four sections of 300 tokens in forward, four for five in the gradients.
      const int64_t few_bytes = size == 64 ? 72 << 10 : kLeastSharedBytes;
      set_most_shared_bytes(tokens == 300 ? few_bytes : 227 << 10);
      const DType type = (turn + turn / 4) % 2 ? DType::kBfloat16 : DType::kFloat16;
      Random random(static_cast<uint64_t>(turn));
      const int axis = tokens <= 65 ? turn % 3 : 0;
      const bool has_many_lines = tokens == 65;
      constexpr int64_t kBatches[] = {4, 2, 1};  // of them, for each axis
      const int64_t heads = has_many_lines ? 2 : 1;
      const int64_t batch = has_many_lines ? kBatches[axis] : tokens == 144 ? 2 : 1;
      // Large logits, whose maximum in the second section is far above that in the first, or not.
      const double scale = tokens == 144 ? 3 : 1;
      AttentionCase problem = make(random, type, shape_of(axis, batch, tokens, heads, size), scale);
      set_grid(problem, 1);
      compare<Gpu>(problem, "warpgroups", turn % 13 == 0);
    }
  }
  set_most_shared_bytes(227 << 10);
  test_scale<Gpu>();
  test_one_key<Gpu>();
  test_large_logits<Gpu>();
  test_not_finite<Gpu>();
  test_infinite_key<Gpu>();
  test_no_elements<Gpu>();
  set_warpgroup_multiprocessors(0);
  set_most_shared_bytes(kLeastSharedBytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "long_lines")) test_long_lines();
  if (wanted(argc, argv, "many_lines")) test_many_lines();
  if (wanted(argc, argv, "shared_memory")) test_shared_memory();
  if (wanted(argc, argv, "warpgroups")) test_warpgroups();
  if (wanted(argc, argv, "scale")) test_scale<Gpu>();
  if (wanted(argc, argv, "bias")) {
    test_bias<Gpu>();
    test_bias_of_long_lines();
  }
  if (wanted(argc, argv, "closed_rows")) {
    test_closed_lines<Gpu>();
    test_closed_rows<Gpu>();
  }
  if (wanted(argc, argv, "values")) {
    test_one_key<Gpu>();
    test_large_logits<Gpu>();
  }
  if (wanted(argc, argv, "not_finite")) {
    test_not_finite<Gpu>();
    test_infinite_key<Gpu>();
  }
  if (wanted(argc, argv, "no_elements")) test_no_elements<Gpu>();
  return finish();
}
