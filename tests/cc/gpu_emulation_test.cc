// The emulation of GPUs stops at kernels and launches that are wrong on a GPU, whatever their
// results are. Each runs in a process of its own, whose last words are checked.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "custom_ops/cuda/device.h"
#include "tests/cc/check.h"

namespace {

using namespace vit_test;

constexpr int kThreads = 64;

enum class Fault {
  kNone,
  kPlaces,
  kCallers,
  kExchanges,
  kEnd,
  kBarrier,
  kBarrierPlaces,
  kBarrierEnd,
  kAlignment,
  kPhases,
  kForever,
  kForeverAlone,
  kNoArrivals,
  kNoBegin,
  kTooManyArrivals,
};

VIT_DEVICE int sum_of_neighbours(int value) { return value + vit::shuffle_xor(value, 1); }

// The second warp gives the first one numbers, one after the other, in one word of shared memory.
VIT_DEVICE int pass_phases(Fault fault) {
  using namespace vit;
  char* const memory = shared_memory() + 4 * kThreads;
  const SharedBarrier full = {memory}, empty = {memory + SharedBarrier::kBytes};
  int* const word = reinterpret_cast<int*>(memory + 2 * SharedBarrier::kBytes);
  if (thread_index() == 0) {
    if (fault != Fault::kNoBegin) full.init(1);
    empty.init(fault == Fault::kForever ? 33 : fault == Fault::kNoArrivals ? 0 : 32);
  }
  sync_block();
  if (fault == Fault::kForeverAlone && thread_index() < 32) return 0;
  int sum = 0;
  for (int i = 0; i < 5; ++i) {
    if (thread_index() < 32) {
      full.wait(i % 2);
      sum += *word;
      empty.arrive();
    } else if (thread_index() == 63) {
      empty.wait((i + 1) % 2);
      *word = 1 << i;
      full.arrive();
    }
  }
  if (fault == Fault::kTooManyArrivals && thread_index() == 0) empty.arrive();
  sync_block();
  if (thread_index() < 32 && sum != 31) emulation_error("the sum is %d", sum);
  return sum;
}

VIT_KERNEL(kThreads, 1, faulty, const Fault fault) {
  using namespace vit;
  const bool is_low = lane_index() < 16, is_first = thread_index() < 32;
  int value = thread_index();
  switch (fault) {
    case Fault::kNone:
      if (is_low) value += 1;
      if (is_first) value = sum_of_neighbours(value);  // a whole warp
      sync_block();
      break;
    case Fault::kPlaces:
      if (is_low) {
        value = shuffle_xor(value, 1);
      } else {
        value = shuffle_xor(value, 1) + 1;
      }
      break;
    case Fault::kCallers:
      if (is_low) {
        value = sum_of_neighbours(value);
      } else {
        value = sum_of_neighbours(value + 1);
      }
      break;
    case Fault::kExchanges:
      if (is_low) {
        sync_warp();
      } else {
        value = shuffle(value, 0);
      }
      break;
    case Fault::kEnd:
      if (is_low) return;
      sync_warp();
      break;
    case Fault::kBarrier:
      if (is_low) sync_block();
      sync_warp();
      break;
    case Fault::kBarrierPlaces:
      if (is_first) {
        sync_block();
      } else {
        sync_block();
      }
      break;
    case Fault::kBarrierEnd:
      if (is_first) return;
      sync_block();
      break;
    case Fault::kAlignment:
      uint32_t words[4];
      load_words<4>(shared_memory() + 4, words);
      break;
    case Fault::kPhases:
    case Fault::kForever:
    case Fault::kForeverAlone:
    case Fault::kNoArrivals:
    case Fault::kNoBegin:
    case Fault::kTooManyArrivals:
      value = pass_phases(fault);
      break;
  }
  reinterpret_cast<int*>(shared_memory())[thread_index()] = value;
}

// What a process writes that runs the kernel, and whether it aborts.
struct Outcome {
  std::string text;
  bool aborts;
};
Outcome outcome_of(Fault fault, const vit::LaunchShape& shape) {
  int ends[2];
  if (pipe(ends)) return {"there is no pipe", false};
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    vit::launch(faulty, shape, fault, {nullptr, nullptr, nullptr});
    _exit(0);
  }
  close(ends[1]);
  Outcome outcome = {"", false};
  char buffer[256];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    outcome.text.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.aborts = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  return outcome;
}

void test_faults() {
  const vit::LaunchShape fits = {2, kThreads, 512};
  const struct {
    Fault fault;
    vit::LaunchShape shape;
    const char* text;  // null: nothing is wrong
  } cases[] = {
      {Fault::kNone, fits, nullptr},
      {Fault::kNone, {2, 32, kLeastSharedBytes}, nullptr},
      {Fault::kPlaces, fits, "threads of a warp reach shuffle at different places"},
      {Fault::kCallers, fits, "threads of a warp reach shuffle at different places"},
      {Fault::kExchanges, fits, "threads of a warp reach shuffle, others sync_warp"},
      {Fault::kEnd, fits, "not all threads of a warp reach sync_warp"},
      {Fault::kBarrier, fits, "not all threads of a warp reach sync_warp"},
      {Fault::kBarrierPlaces, fits, "threads of a block reach sync_block at different places"},
      {Fault::kBarrierEnd, fits, "not all threads of a block reach a barrier"},
      {Fault::kAlignment, fits, "an address is not aligned"},
      {Fault::kPhases, fits, nullptr},
      {Fault::kForever, fits, "a thread waits for a barrier forever"},
      {Fault::kForeverAlone, fits, "a thread waits for a barrier forever"},
      {Fault::kNoArrivals, fits, "a barrier counts 0 arrivals"},
      {Fault::kNoBegin, fits, "a thread uses a barrier that has not begun"},
      {Fault::kTooManyArrivals, fits, "a block ends with 1 of 32 arrivals at a barrier"},
      {Fault::kNone, {2, 96, 512}, "a launch has 96 threads per block, its kernel at most 64"},
      {Fault::kNone, {2, 48, 512}, "a launch has 48 threads per block"},
      {Fault::kNone, {2, 64, kLeastSharedBytes + 1}, "a launch has 101377 bytes of shared"},
  };
  for (const auto& c : cases) {
    testing("fault %d, %d threads, %lld bytes", static_cast<int>(c.fault), c.shape.threads,
            static_cast<long long>(c.shape.shared_bytes));
    const Outcome outcome = outcome_of(c.fault, c.shape);
    EXPECT(outcome.aborts == (c.text != nullptr), "it %s: %s", outcome.aborts ? "stops" : "runs",
           outcome.text.c_str());
    if (!c.text) continue;
    EXPECT(outcome.text.find(c.text) != std::string::npos, "it says %s", outcome.text.c_str());
  }
  testing("too many blocks");
  const vit::CudaExecution nowhere = {nullptr, nullptr, nullptr};
  EXPECT(vit::launch(faulty, {vit::kMaxBlocks + 1, 64, 0}, Fault::kNone, nowhere) ==
             vit::CudaResult::kTooLarge,
         "they are not refused");
}

}  // namespace

int main() {
  test_faults();
  return finish();
}
