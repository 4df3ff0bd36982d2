// The fibers of gpu_emulation.h.
#include "tests/cc/gpu_emulation.h"

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

enum class Wait { kNothing, kWarp, kBlock, kEnd };

struct Copy {
  void* shared;
  const void* global;
  bool valid;
};

struct Fiber {
  Place place;
  std::unique_ptr<char[]> stack;
  Wait wait;
  const char* exchange;  // what it waits for with its warp, and the argument
  void* argument;
  std::vector<Copy> copies;  // started since the last group
  std::vector<std::vector<Copy>> groups;
  void* sanitizer_stack;
};

struct Block {
  std::vector<Fiber> fibers;
  const std::function<void()>* thread;
  Place scheduler;
  int running;
  int64_t index;
  char* shared;
  bool reversed;
  const void* scheduler_stack;
  size_t scheduler_stack_size;
  void* sanitizer_stack;
};
Block block;

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

// From the scheduler to a fiber, until it waits.
void resume(int i) {
  Fiber& fiber = block.fibers[static_cast<size_t>(i)];
  block.running = i;
  start_switch(&block.sanitizer_stack, fiber.stack.get(), kStackBytes);
  switch_to(block.scheduler, fiber.place);
  finish_switch(block.sanitizer_stack, nullptr, nullptr);
}

Fiber& current() { return block.fibers[static_cast<size_t>(block.running)]; }

// From the fiber that runs to the scheduler.
void yield_for(Wait wait) {
  Fiber& fiber = current();
  fiber.wait = wait;
  const bool ends = wait == Wait::kEnd;
  start_switch(ends ? nullptr : &fiber.sanitizer_stack, block.scheduler_stack,
               block.scheduler_stack_size);
  switch_to(fiber.place, block.scheduler);
  finish_switch(fiber.sanitizer_stack, nullptr, nullptr);
}

void run_fiber() {
  finish_switch(nullptr, &block.scheduler_stack, &block.scheduler_stack_size);
  (*block.thread)();
  yield_for(Wait::kEnd);
}

void arrive(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (copy.valid) {
      memcpy(copy.shared, copy.global, 16);
    } else {
      memset(copy.shared, 0, 16);
    }
  }
}

// Runs the threads of a warp until all wait for the block or have ended.
void run_warp(int warp) {
  const int first = warp * 32;
  bool is_running = true;
  while (is_running) {
    is_running = false;
    for (int i = first; i < first + 32; ++i) {
      if (block.fibers[static_cast<size_t>(i)].wait != Wait::kNothing) continue;
      is_running = true;
      resume(i);
    }
  }
  for (int i = first; i < first + 32; ++i) {
    if (block.fibers[static_cast<size_t>(i)].wait == Wait::kWarp) {
      emulation_error("not all threads of a warp reach an exchange");
    }
  }
}

}  // namespace

void emulation_error(const char* message) {
  fprintf(stderr, "GPU emulation: %s (block %lld, thread %d)\n", message,
          static_cast<long long>(block.index), block.running);
  abort();
}

void set_reversed(bool reversed) { block.reversed = reversed; }
bool is_reversed() { return block.reversed; }
int emulated_thread() { return block.running; }
int64_t* emulated_block() { return &block.index; }
char* emulated_shared_memory() { return block.shared; }

void emulated_sync_block() { yield_for(Wait::kBlock); }

void emulated_copy(void* shared, const void* global, bool valid) {
  if (block.reversed) return arrive({{shared, global, valid}});
  current().copies.push_back({shared, global, valid});
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

void emulated_exchange(const char* name, void* argument, void (*action)(void* const (&)[32])) {
  const int first = block.running / 32 * 32;
  Fiber* const warp = &block.fibers[static_cast<size_t>(first)];
  current().exchange = name;
  current().argument = argument;
  for (int i = 0; i < 32; ++i) {
    if (first + i != block.running && warp[i].wait != Wait::kWarp) return yield_for(Wait::kWarp);
  }
  void* arguments[32];
  for (int i = 0; i < 32; ++i) {
    if (strcmp(warp[i].exchange, name) != 0) {
      emulation_error("the threads of a warp reach different exchanges");
    }
    arguments[i] = warp[i].argument;
    warp[i].wait = Wait::kNothing;
  }
  action(arguments);
}

void run_block(int threads, int64_t shared_bytes, bool reversed,
               const std::function<void()>& thread) {
  block.thread = &thread;
  const auto size = static_cast<size_t>(shared_bytes);
  block.shared = static_cast<char*>(aligned_alloc(16, (size + 15) / 16 * 16));
  memset(block.shared, 0xff, size);  // NaN in every float type
  if (block.fibers.size() < static_cast<size_t>(threads)) {
    block.fibers.resize(static_cast<size_t>(threads));
  }
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = block.fibers[static_cast<size_t>(i)];
    if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
    begin(fiber.place, fiber.stack.get(), run_fiber);
    fiber.wait = Wait::kNothing;
    fiber.copies.clear();
    fiber.groups.clear();
  }
  for (int ended = 0; ended < threads;) {
    for (int warp = 0; warp < threads / 32; ++warp) {
      run_warp(reversed ? threads / 32 - 1 - warp : warp);
    }
    ended = 0;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = block.fibers[static_cast<size_t>(i)];
      ended += fiber.wait == Wait::kEnd;
      if (fiber.wait == Wait::kBlock) fiber.wait = Wait::kNothing;
    }
    if (ended && ended < threads) {
      emulation_error("not all threads of a block reach a barrier");
    }
  }
  free(block.shared);
}

}  // namespace vit_test
