// Times the stages of the encoder: `encoder_with` with the kernels of one stage only, so for all
// blocks, each with its weights, at the sizes and in the parts that the encoder chooses. Inputs of
// a stage are what the last block of a whole run has left there.
//
// Before that, results for a small problem are compared with plain loops.
//
// Prints JSON: {"isa": name, "all": {stage: [seconds, ...], ...}, "first": the same}, "first" with
// `first_row_only`. The whole encoder is the stage "encoder". "encoder, new memory" gets memory for
// activations from the C library in each call, as the op does; all others use the same again.
//
// usage: encoder_stages BATCH TOKENS WIDTH HEADS MLP_SIZE BLOCKS PRECISION ISA THREADS SECONDS
// An empty ISA is the best one. The stages run in turn, until SECONDS have passed, at least once.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "custom_ops/cpu/encoder/cpu_encoder.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/team.h"
#include "tests/cc/check.h"
#include "tests/cc/encoder_oracle.h"
#include "tests/cc/numbers.h"
#include "tests/cc/pool.h"

namespace {

using namespace vit_test;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check(vit::Result result) {
  if (result == vit::Result::kOk) return;
  fprintf(stderr, "not enough memory\n");
  exit(1);
}

// Memory that is released is given to the next call that wants as much, with what is in it.
struct Kept {
  std::mutex mutex;
  std::multimap<int64_t, void*> free;
  std::map<void*, int64_t> used;

  static Kept& instance() {
    static Kept kept;
    return kept;
  }
  static void* allocate(int64_t bytes) {
    Kept& self = instance();
    const std::lock_guard<std::mutex> lock(self.mutex);
    const auto found = self.free.find(bytes);
    void* const memory = found == self.free.end() ? vit::heap().allocate(bytes) : found->second;
    if (found != self.free.end()) self.free.erase(found);
    if (memory) self.used[memory] = bytes;
    return memory;
  }
  static void release(void* memory) {
    Kept& self = instance();
    const std::lock_guard<std::mutex> lock(self.mutex);
    self.free.emplace(self.used.at(memory), memory);
    self.used.erase(memory);
  }
};

// Threads that share the work of a call, as TensorFlow's threads do.
struct Threads {
  // About 100 us.
  static constexpr int kYields = 200;

  explicit Threads(int count)
      : pool(count - 1, kYields), team(count, [this](auto task) { pool.schedule(task); }) {}

  vit::Execution execution(vit::Allocator allocator) { return {team.parallel_for(), allocator}; }

  Pool pool;
  vit::Team team;
};

// Aligned as the tensors of TensorFlow.
using Memory = std::unique_ptr<char, void (*)(void*)>;
Memory new_memory(int64_t bytes) {
  const vit::Allocator heap = vit::heap();
  Memory memory(static_cast<char*>(heap.allocate(bytes)), heap.release);
  check(memory ? vit::Result::kOk : vit::Result::kOutOfMemory);
  return memory;
}

// A problem with random input, weights and biases.
class Model {
 public:
  explicit Model(const vit::EncoderProblem& sizes)
      : problem(sizes),
        input_(random_numbers(vit::DType::kFloat32, sizes.batch * sizes.tokens * sizes.width, 1)),
        out_(new_memory(sizes.batch * sizes.tokens * sizes.width * 4)) {
    const int64_t width = problem.width, mlp_size = problem.mlp_size;
    problem.activation = vit::Activation::kGeluTanh;
    const int64_t count =
        vit::encoder_weights_size(problem.type, width, mlp_size, problem.activation);
    problem.epsilon = 1e-6f;
    // After LayerNorm, so that queries, keys and values have a variance of 1.
    const double deviation = 1 / sqrt(static_cast<double>(width));
    for (int64_t i = 0; i < problem.blocks; ++i) {
      weights_.push_back(random_numbers(problem.type, count, deviation));
      biases_.push_back(
          random_numbers(vit::DType::kFloat32,
                         vit::encoder_biases_size(width, mlp_size, problem.activation), 0.1));
      blocks_.push_back(
          {weights_.back().get(), reinterpret_cast<const float*>(biases_.back().get())});
    }
    problem.block = blocks_.data();
    problem.input = reinterpret_cast<const float*>(input_.get());
    problem.out = reinterpret_cast<float*>(out_.get());
  }

  vit::EncoderProblem problem;

 private:
  // Parts of one list of numbers, from random places on: that many draws would take seconds.
  Memory random_numbers(vit::DType type, int64_t count, double deviation) {
    constexpr int64_t kDrawn = 1 << 18, kMostPart = 1 << 14;
    const int64_t size = vit::size_of(type);
    const Memory drawn = new_memory(kDrawn * size);
    for (int64_t i = 0; i < kDrawn; ++i) {
      store_number(type, deviation * random_.normal(), drawn.get() + i * size);
    }
    Memory found = new_memory(count * size);
    for (int64_t begin = 0; begin < count; begin += kMostPart) {
      const int64_t part = std::min(kMostPart, count - begin);
      memcpy(found.get() + begin * size, drawn.get() + random_.below(kDrawn - part) * size,
             static_cast<size_t>(part * size));
    }
    return found;
  }

  Random random_{1};
  std::vector<Memory> weights_, biases_;
  Memory input_, out_;
  std::vector<vit::EncoderBlock> blocks_;
};

// Whether a small problem, in which fc2 has several parts, is near the oracle of the tests.
bool verify(vit::DType type, Threads& threads) {
  Random random(2);
  for (bool first : {false, true}) {
    EncoderCase small{type, 2, 5, 128, 2, 1152, vit::Activation::kGeluTanh, first};
    small.fill(random, 2, 0);
    say("a small problem", small);
    EncoderRun run(small, 0);
    run.all(threads.team.parallel_for());
    run.expect();
  }
  return state().failures == 0;
}

enum Stage { kLayerNorm, kQkv, kAttention, kOut, kFc1, kFc2, kStages };
constexpr const char* kNames[kStages] = {"layer_norm", "qkv", "attention", "out", "fc1", "fc2"};

// The kernels that run: a kernel is a plain function, so what it reads is global.
struct Chosen {
  Stage stage;
  vit::EncoderProblem problem;
  int64_t (*dense_units)(const vit::DenseProblem& problem);
} chosen;

Stage stage_of(const vit::DenseProblem& dense) {
  if (dense.epilogue == vit::Epilogue::kBias) return kQkv;
  if (dense.epilogue != vit::Epilogue::kResidual) return kFc1;
  // Panels belong to the whole layer, also in a part of its depth.
  const int64_t out =
      vit::packed_size(chosen.problem.type, chosen.problem.width, vit::kPanelColumns);
  return dense.panel_size == out ? kOut : kFc2;
}

// The kernels with units of one stage only.
vit::EncoderKernels kernels_of(Stage stage, const vit::EncoderProblem& problem) {
  vit::EncoderKernels kernels = vit::encoder_kernels(problem);
  chosen = {stage, problem, kernels.dense.units};
  kernels.dense.units = [](const vit::DenseProblem& dense) {
    return stage_of(dense) == chosen.stage ? chosen.dense_units(dense) : 0;
  };
  if (stage != kLayerNorm) {
    kernels.layer_norm.units = [](const vit::LayerNormProblem&) -> int64_t { return 0; };
  }
  if (stage != kAttention) {
    kernels.attention.units = [](const vit::AttentionForwardProblem&) -> int64_t { return 0; };
    kernels.first_row.units = [](const vit::FirstRowProblem&) -> int64_t { return 0; };
  }
  return kernels;
}

using Times = std::map<std::string, std::vector<double>>;

// Adds the time of every stage, one after the other.
void time_stages(const vit::EncoderProblem& problem, Threads& threads, Times& times) {
  const vit::Execution kept = threads.execution({Kept::allocate, Kept::release});
  const auto time = [&](const char* name, const auto& call) {
    const auto begin = Clock::now();
    check(call());
    times[name].push_back(seconds_since(begin));
  };
  // First, since it writes the inputs of the stages.
  time("encoder", [&] { return vit::encoder(problem, kept); });
  for (int stage = 0; stage < kStages; ++stage) {
    const vit::EncoderKernels kernels = kernels_of(static_cast<Stage>(stage), problem);
    time(kNames[stage], [&] { return vit::encoder_with(kernels, problem, kept); });
  }
  time("encoder, new memory",
       [&] { return vit::encoder(problem, threads.execution(vit::heap())); });
}

void print(const char* name, const Times& times) {
  printf(", \"%s\": {", name);
  const char* comma = "";
  for (const auto& [stage, seconds] : times) {
    printf("%s\"%s\": [", comma, stage.c_str());
    comma = "";
    for (double one : seconds) {
      printf("%s%.6g", comma, one);
      comma = ", ";
    }
    printf("]");
  }
  printf("}");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 11) {
    fprintf(stderr,
            "usage: encoder_stages BATCH TOKENS WIDTH HEADS MLP_SIZE BLOCKS PRECISION ISA THREADS "
            "SECONDS\n");
    return 2;
  }
  vit::EncoderProblem sizes{};
  int64_t* const fields[] = {&sizes.batch, &sizes.tokens,   &sizes.width,
                             &sizes.heads, &sizes.mlp_size, &sizes.blocks};
  for (int i = 0; i < 6; ++i) *fields[i] = atoll(arguments[1 + i]);
  sizes.type = strcmp(arguments[7], "float32") == 0 ? vit::DType::kFloat32 : vit::DType::kBfloat16;
  if (const char* problem = vit::choose_isa(arguments[8])) {
    fprintf(stderr, "%s: %s\n", arguments[8], problem);
    return 2;
  }
  Threads threads(atoi(arguments[9]));
  const double seconds = atof(arguments[10]);
  if (!verify(sizes.type, threads)) return 1;
  Model model(sizes);
  Times all, first;
  // Untimed: maps the memory that is used again. Its sizes do not depend on the blocks.
  vit::EncoderProblem short_problem = model.problem;
  short_problem.blocks = std::min<int64_t>(sizes.blocks, 2);
  for (bool first_row_only : {true, false}) {
    short_problem.first_row_only = first_row_only;
    check(vit::encoder(short_problem, threads.execution({Kept::allocate, Kept::release})));
  }
  const auto begin = Clock::now();
  do {
    model.problem.first_row_only = false;
    time_stages(model.problem, threads, all);
    model.problem.first_row_only = true;
    time_stages(model.problem, threads, first);
  } while (seconds_since(begin) < seconds);
  printf("{\"isa\": \"%s\"", isa());
  print("all", all);
  print("first", first);
  printf("}\n");
}
