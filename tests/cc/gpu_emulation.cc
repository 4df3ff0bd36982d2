// The fibers of gpu_emulation.h.
#include "tests/cc/gpu_emulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <memory>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VIT_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#endif

#if defined(__x86_64__)
// Saves the registers that a call preserves on the stack and its end in *from, and continues at
// `to`, where the same was done. swapcontext would call the kernel for the signal mask, and a
// sanitizer would clear its notes about the whole stack: both take many times as long.
extern "C" void vit_switch_stack(void** from, void* to);
asm(R"(
.text
vit_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#endif

namespace vit_test {
namespace {

constexpr int64_t kStackBytes = 256 * 1024;

// Where a fiber, or the scheduler, continues.
#if defined(__x86_64__)
struct Place {
  void* stack;
};

void switch_to(Place& from, Place& to) { vit_switch_stack(&from.stack, to.stack); }

// A new fiber begins with the function, which never returns.
void begin(Place& place, char* stack, void (*function)()) {
  auto** const end =
      reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + kStackBytes) / 16 * 16);
  end[-2] = reinterpret_cast<void*>(function);  // returned to, with the stack aligned as by a call
  place.stack = end - 8;  // below it are six registers
}
#else
struct Place {
  ucontext_t context;
};

void switch_to(Place& from, Place& to) { swapcontext(&from.context, &to.context); }

void begin(Place& place, char* stack, void (*function)()) {
  getcontext(&place.context);
  place.context.uc_stack.ss_sp = stack;
  place.context.uc_stack.ss_size = kStackBytes;
  makecontext(&place.context, function, 0);
}
#endif

enum class Wait { kNothing, kWarp, kBarrier, kBlock, kEnd };

struct Copy {
  void* shared;
  const void* global;
  bool valid;
  size_t bytes;
};

// A call of a barrier or an exchange.
struct Call {
  const char* name;
  uint64_t callers;  // a number made of the addresses that all callers below the kernel return to
};

struct Fiber {
  Place place;
  std::unique_ptr<char[]> stack;
  void** first_frame;
  Wait wait;
  Call call;  // that it waits in
  void* argument;
  const BarrierState* barrier;  // that it waits for, and the phase whose end it waits for
  int phase;
  std::vector<Copy> copies;  // started since the last group
  std::vector<std::vector<Copy>> groups;
  std::vector<std::function<void()>> products;  // of the warp, of its first thread
  void* sanitizer_stack;
};

struct Block {
  std::vector<Fiber> fibers;
  Fiber* first;  // of the fibers
  const std::function<void()>* thread;
  Place scheduler;
  int64_t index;
  char* shared;
  bool reversed;
  std::vector<const BarrierState*> barriers;  // in shared memory, that have begun
  const void* scheduler_stack;
  size_t scheduler_stack_size;
  void* sanitizer_stack;
};
Block block;
int64_t most_shared = kLeastSharedBytes;
int warpgroup_multiprocessors = 0;
}  // namespace

int running_thread;

namespace {

void start_switch([[maybe_unused]] void** save, [[maybe_unused]] const void* stack,
                  [[maybe_unused]] size_t size) {
#ifdef VIT_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(save, stack, size);
#endif
}

void finish_switch([[maybe_unused]] void* saved, [[maybe_unused]] const void** stack,
                   [[maybe_unused]] size_t* size) {
#ifdef VIT_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(saved, stack, size);
#endif
}

VIT_TEST_UNCHECKED Fiber& fiber(int i) { return block.first[i]; }
VIT_TEST_UNCHECKED Fiber& current() { return fiber(running_thread); }

// The thread of the warp that runs next; -1 if all wait or have ended.
VIT_TEST_UNCHECKED int next_of_warp(int first, int after) {
  for (int i = after + 1; i < first + 32; ++i) {
    if (fiber(i).wait == Wait::kNothing) return i;
  }
  for (int i = first; i <= after; ++i) {
    if (fiber(i).wait == Wait::kNothing) return i;
  }
  return -1;
}

// From the scheduler to a fiber, until no thread of its warp can run.
void resume(int i) {
  running_thread = i;
  start_switch(&block.sanitizer_stack, fiber(i).stack.get(), kStackBytes);
  switch_to(block.scheduler, fiber(i).place);
  finish_switch(block.sanitizer_stack, nullptr, nullptr);
}

// From the fiber that runs to the next one of its warp, or to the scheduler if there is none.
VIT_TEST_UNCHECKED void leave() {
  Fiber& from = current();
  void** const save = from.wait == Wait::kEnd ? nullptr : &from.sanitizer_stack;
  const int next = next_of_warp(running_thread / 32 * 32, running_thread);
  if (next < 0) {
    start_switch(save, block.scheduler_stack, block.scheduler_stack_size);
    switch_to(from.place, block.scheduler);
  } else {
    running_thread = next;
    start_switch(save, fiber(next).stack.get(), kStackBytes);
    switch_to(from.place, fiber(next).place);
  }
  finish_switch(from.sanitizer_stack, nullptr, nullptr);
}

void run_fiber() {
  const void* stack;
  size_t size;
  finish_switch(nullptr, &stack, &size);
  // The first fiber of all continues the scheduler, others may continue a fiber.
  if (!block.scheduler_stack) block.scheduler_stack = stack, block.scheduler_stack_size = size;
  current().first_frame = static_cast<void**>(__builtin_frame_address(0));
  (*block.thread)();
  current().wait = Wait::kEnd;
  leave();
}

// The call of the function with this frame, by the thread that runs. A frame begins with the
// address of the caller's frame, then the address that the function returns to.
VIT_TEST_UNCHECKED Call call_of(const char* name, void* function) {
  Call call = {name, 0};
  for (auto frame = static_cast<void**>(function); frame != current().first_frame;
       frame = static_cast<void**>(*frame)) {
    call.callers = call.callers * 0x9e3779b97f4a7c15u + reinterpret_cast<uintptr_t>(frame[1]);
  }
  return call;
}

// Stops the program if the calls are not one.
VIT_TEST_UNCHECKED void expect_same_call(const Call& a, const Call& b, const char* whose) {
  if (a.callers == b.callers) return;
  if (strcmp(a.name, b.name) != 0) {
    emulation_error("threads of %s reach %s, others %s", whose, a.name, b.name);
  }
  emulation_error("threads of %s reach %s at different places", whose, a.name);
}

void arrive(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (copy.valid) {
      memcpy(copy.shared, copy.global, copy.bytes);
    } else {
      memset(copy.shared, 0, copy.bytes);
    }
  }
}

// Runs the threads of a warp until all wait for others or have ended. Returns whether any ran.
bool run_warp(int warp) {
  const int first = warp * 32;
  const int next = next_of_warp(first, first + 31);
  if (next < 0) return false;
  resume(next);
  bool is_at_barrier = false;
  for (int i = first; i < first + 32; ++i) is_at_barrier |= fiber(i).wait == Wait::kBarrier;
  for (int i = first; i < first + 32 && !is_at_barrier; ++i) {
    if (fiber(i).wait == Wait::kWarp) {
      emulation_error("not all threads of a warp reach %s", fiber(i).call.name);
    }
  }
  return true;
}

// Lets threads go on whose barriers are in the next phase. Returns whether there are any.
VIT_TEST_UNCHECKED bool pass_barriers(int threads) {
  bool any = false;
  for (int i = 0; i < threads; ++i) {
    Fiber& waiting = fiber(i);
    if (waiting.wait == Wait::kBarrier && emulated_has_ended(waiting.barrier, waiting.phase)) {
      waiting.wait = Wait::kNothing;
      any = true;
    }
  }
  return any;
}

// Lets the threads of the block go on, which all must wait for it.
void pass_block(int threads) {
  // Whatever the others do, this is the cause.
  for (int i = 0; i < threads; ++i) {
    if (fiber(i).wait != Wait::kBarrier) continue;
    running_thread = i;
    emulation_error("a thread waits for a barrier forever");
  }
  for (int i = 0; i < threads; ++i) {
    if (fiber(i).wait == Wait::kEnd) emulation_error("not all threads of a block reach a barrier");
    expect_same_call(fiber(0).call, fiber(i).call, "a block");
  }
  for (int i = 0; i < threads; ++i) fiber(i).wait = Wait::kNothing;
}

// Shared memory begins with -1.
VIT_TEST_UNCHECKED void expect_begun(const BarrierState* barrier) {
  if (barrier->arrivals < 0) emulation_error("a thread uses a barrier that has not begun");
}

// Stops the program if an arrival is left that belongs to no whole phase: one too many, or too few.
void expect_whole_phases() {
  for (const BarrierState* barrier : block.barriers) {
    if (barrier->missing == barrier->arrivals) continue;
    emulation_error("a block ends with %d of %d arrivals at a barrier",
                    barrier->arrivals - barrier->missing, barrier->arrivals);
  }
}

}  // namespace

void emulation_error(const char* text, ...) {
  fprintf(stderr, "GPU emulation: ");
  va_list arguments;
  va_start(arguments, text);
  vfprintf(stderr, text, arguments);
  va_end(arguments);
  fprintf(stderr, " (block %lld, thread %d)\n", static_cast<long long>(block.index),
          running_thread);
  abort();
}

void expect_launchable(const vit::LaunchShape& shape, int threads) {
  if (shape.threads <= 0 || shape.threads % 32 || shape.threads > threads) {
    emulation_error("a launch has %d threads per block, its kernel at most %d, in warps of 32",
                    shape.threads, threads);
  }
  if (shape.shared_bytes < 0 || shape.shared_bytes > most_shared) {
    emulation_error("a launch has %lld bytes of shared memory per block, the GPU at most %lld",
                    static_cast<long long>(shape.shared_bytes),
                    static_cast<long long>(most_shared));
  }
}

void set_most_shared_bytes(int64_t bytes) { most_shared = bytes; }
void set_warpgroup_multiprocessors(int count) { warpgroup_multiprocessors = count; }
void set_reversed(bool reversed) { block.reversed = reversed; }
bool is_reversed() { return block.reversed; }
int64_t* emulated_block() { return &block.index; }
char* emulated_shared_memory() { return block.shared; }

VIT_TEST_UNCHECKED void emulated_sync_block() {
  current().call = call_of("sync_block", __builtin_frame_address(0));
  current().wait = Wait::kBlock;
  leave();
}

void emulated_copy(void* shared, const void* global, bool valid) {
  if (block.reversed) return arrive({{shared, global, valid, 16}});
  current().copies.push_back({shared, global, valid, 16});
}
void emulated_word_copy(void* shared, const void* global, bool valid) {
  if (block.reversed) return arrive({{shared, global, valid, 4}});
  current().copies.push_back({shared, global, valid, 4});
}

VIT_TEST_UNCHECKED bool emulated_has_ended(const BarrierState* barrier, int phase) {
  expect_begun(barrier);
  return (barrier->phase & 1) != phase;
}

VIT_TEST_UNCHECKED void emulated_wait_for(const BarrierState* barrier, int phase) {
  Fiber& own = current();
  if (emulated_has_ended(barrier, phase)) return;
  own.call = call_of("a barrier in shared memory", __builtin_frame_address(0));
  own.barrier = barrier;
  own.phase = phase;
  own.wait = Wait::kBarrier;
  leave();
}

void emulated_begin(BarrierState* barrier, int arrivals) {
  if (arrivals <= 0) emulation_error("a barrier counts %d arrivals", arrivals);
  const auto count = static_cast<int16_t>(arrivals);
  *barrier = {count, count, 0};
  block.barriers.push_back(barrier);
}

void emulated_arrive(BarrierState* barrier) {
  expect_begun(barrier);
  if (--barrier->missing == 0) {
    barrier->missing = barrier->arrivals;
    ++barrier->phase;
  }
}

void emulated_commit() {
  Fiber& fiber = current();
  fiber.groups.emplace_back();
  fiber.groups.back().swap(fiber.copies);
}

void emulated_wait(int pending) {
  auto& groups = current().groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    arrive(groups.front());
    groups.erase(groups.begin());
  }
}

void emulated_start(const std::function<void()>& work) {
  if (block.reversed) return work();
  fiber(running_thread / 32 * 32).products.push_back(work);
}

void emulated_finish() {
  auto& products = fiber(running_thread / 32 * 32).products;
  for (const auto& work : products) work();
  products.clear();
}

VIT_TEST_UNCHECKED void emulated_exchange(const char* name, void* argument,
                                          void (*action)(void* const (&)[32])) {
  const int first = running_thread / 32 * 32;
  Fiber& own = current();
  own.call = call_of(name, __builtin_frame_address(0));
  own.argument = argument;
  own.wait = Wait::kWarp;
  if (next_of_warp(first, running_thread) >= 0) return leave();
  for (int i = 0; i < 32; ++i) {
    if (fiber(first + i).wait == Wait::kBarrier) return leave();
  }
  void* arguments[32];
  for (int i = 0; i < 32; ++i) {
    const Fiber& lane = fiber(first + i);
    if (lane.wait != Wait::kWarp) emulation_error("not all threads of a warp reach %s", name);
    expect_same_call(own.call, lane.call, "a warp");
    arguments[i] = lane.argument;
  }
  for (int i = 0; i < 32; ++i) fiber(first + i).wait = Wait::kNothing;
  action(arguments);
}

void run_block(int threads, int64_t shared_bytes, bool reversed,
               const std::function<void()>& thread) {
  block.thread = &thread;
  const auto size = static_cast<size_t>(shared_bytes);
  block.shared = static_cast<char*>(aligned_alloc(16, (size + 15) / 16 * 16));
  memset(block.shared, 0xff, size);  // NaN in every float type
  block.barriers.clear();
  if (block.fibers.size() < static_cast<size_t>(threads)) {
    block.fibers.resize(static_cast<size_t>(threads));
    block.first = block.fibers.data();
  }
  for (int i = 0; i < threads; ++i) {
    Fiber& own = fiber(i);
    if (!own.stack) own.stack.reset(new char[kStackBytes]);
    begin(own.place, own.stack.get(), run_fiber);
    own.wait = Wait::kNothing;
    own.copies.clear();
    own.groups.clear();
    own.products.clear();
  }
  for (;;) {
    bool any = false;
    for (int warp = 0; warp < threads / 32; ++warp) {
      any |= run_warp(reversed ? threads / 32 - 1 - warp : warp);
    }
    if (pass_barriers(threads) || any) continue;
    int ended = 0;
    for (int i = 0; i < threads; ++i) ended += fiber(i).wait == Wait::kEnd;
    if (ended == threads) break;
    pass_block(threads);
  }
  expect_whole_phases();
  free(block.shared);
}

}  // namespace vit_test

namespace vit {

CudaResult most_shared_bytes(int64_t* bytes) {
  *bytes = vit_test::most_shared;
  return CudaResult::kOk;
}

int warpgroup_multiprocessors() { return vit_test::warpgroup_multiprocessors; }

}  // namespace vit
