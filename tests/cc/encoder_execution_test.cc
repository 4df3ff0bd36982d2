// How the encoder runs: memory, threads, cancellation.
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "tests/cc/encoder_oracle.h"

namespace {

using namespace vit_test;
using vit::DType;

void test_threads() {
  Random random(27);
  uint64_t seed = 0;
  for (DType type : kTypes) {
    for (bool first_row_only : {false, true}) {
      for (const EncoderCase& problem :
           {make(random, type, 3, 33, 96, 3, 130, 2, first_row_only),
            make_modern(random, type, 2, 19, 96, 2, 70, 2, first_row_only, 1),
            make(random, type, 2, 5, 33, 3, 1056, 2, first_row_only)}) {
        EncoderRun one(problem, 1), many(problem, 1);
        for_each_isa([&] {
          say("threads", problem);
          expect_same_on_threads(one, many, seed);
          Shuffled shuffled(++seed, 8);
          many.all(shuffled.parallel_for());
          many.expect_same(one);
          EXPECT(scratch_use().in_use == 0, "scratch is not released");
        });
      }
    }
  }
}

// Each allocation fails in turn, of several threads too.
void test_out_of_memory() {
  Random random(28);
  for (DType type : kTypes) {
    const EncoderCase problem = make(random, type, 2, 17, 34, 2, 40, 2);
    EncoderRun run(problem, 0);
    for_each_isa([&] {
      for (int threads : {1, 3}) {
        say("no memory", problem);
        Shuffled shuffled(5, threads);
        const int64_t before = scratch_use().calls;
        run.all(shuffled.parallel_for());
        const int64_t calls = scratch_use().calls - before;
        EXPECT(calls >= 2, "%lld allocations", number(calls));
        // Another thread may come too late to need scratch, but the first one always does.
        for (int64_t n = 0; n < (threads == 1 ? calls : 2); ++n) {
          scratch_use().left = n;
          EXPECT(run.run(shuffled.parallel_for()) == vit::Result::kOutOfMemory,
                 "allocation %lld fails, but the call does not", number(n));
          EXPECT(scratch_use().in_use == 0, "scratch is not released");
        }
        scratch_use().left = INT64_MAX;
        run.expect_intact();
        run.all(shuffled.parallel_for());
        run.expect();
      }
    });
  }
}

// A call that is cancelled ends, and the next one is right.
void test_cancellation() {
  struct Cancelled : Shuffled {
    std::atomic<int64_t> left{0};  // questions until the call counts as cancelled
    explicit Cancelled(int threads) : Shuffled(6, threads) {}
    vit::ParallelFor parallel_for() {
      return {run, run_team, static_cast<Shuffled*>(this), threads, [](void* pool) {
                return static_cast<Cancelled*>(static_cast<Shuffled*>(pool))->left-- <= 0;
              }};
    }
  };
  Random random(29);
  for (DType type : kTypes) {
    const EncoderCase problem = make(random, type, 2, 17, 34, 2, 40, 2);
    EncoderRun run(problem, 0);
    for_each_isa([&] {
      for (int threads : {1, 3}) {
        say("cancellation", problem);
        Cancelled cancelled(threads);
        for (int64_t questions : {0, 1, 5, 10}) {
          cancelled.left = questions;
          run.run(cancelled.parallel_for());
          EXPECT(cancelled.left < 0, "the encoder does not ask whether it is cancelled");
          EXPECT(scratch_use().in_use == 0, "scratch is not released");
        }
        run.expect_intact();
        cancelled.left = INT64_MAX;
        run.all(cancelled.parallel_for());
        run.expect();
      }
    });
  }
}

// Memory that ends where a page without access begins: sanitizers do not see what tile registers
// load and store.
class BeforePage {
 public:
  // The memory ends at the page if `bytes` are whole multiples of `alignment`.
  static void* allocate(int64_t bytes, int64_t alignment) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto size = static_cast<size_t>((bytes + alignment - 1) / alignment * alignment);
    const size_t used = (size + page - 1) / page * page;
    void* const memory =
        mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    char* const start = static_cast<char*>(memory);
    memset(start, kNan, used);
    if (mprotect(start + used, page, PROT_NONE)) abort();
    char* const result = start + used - size;
    const std::lock_guard<std::mutex> lock(mutex());
    all()[result] = {start, used + page};
    return result;
  }
  static void* scratch(int64_t bytes) { return allocate(bytes, 64); }
  static void release(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex());
    const auto place = all().find(memory);
#if defined(VIT_TEST_POISON)
    // The gaps of scratch end with it.
    __asan_unpoison_memory_region(place->second.first, place->second.second);
#endif
    munmap(place->second.first, place->second.second);
    all().erase(place);
  }
  static const void* copy_of(const Tensor& tensor) {
    return memcpy(allocate(tensor.bytes(), vit::size_of(tensor.type())), tensor.data(),
                  static_cast<size_t>(tensor.bytes()));
  }

 private:
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<void*, std::pair<void*, size_t>>& all() {
    static std::map<void*, std::pair<void*, size_t>> all;
    return all;
  }
};

void test_ends_of_pages() {
  Random random(30);
  for (DType type : kTypes) {
    for (const EncoderCase& problem :
         {make(random, type, 1, 17, 66, 3, 33), make(random, type, 1, 33, 64, 2, 64, 2, true),
          make(random, type, 3, 5, 33, 3, 1100), make(random, type, 1, 1, 2, 1, 1),
          make_modern(random, type, 1, 17, 64, 1, 31, 2, false, 1),
          make_modern(random, type, 2, 5, 132, 2, 33, 1, true, 0)}) {
      EncoderRun run(problem, 0);
      for_each_isa([&] {
        say("ends of pages", problem);
        run.all(vit::serial());
        vit::EncoderProblem there = run.arguments();
        there.input = static_cast<const float*>(BeforePage::copy_of(run.input));
        std::vector<vit::EncoderBlock> block;
        for (size_t i = 0; i < run.block.size(); ++i) {
          block.push_back({BeforePage::copy_of(*run.weights[i]),
                           static_cast<const float*>(BeforePage::copy_of(*run.biases[i]))});
        }
        there.block = block.data();
        if (problem.has_rotary) {
          there.rotary = static_cast<const float*>(BeforePage::copy_of(run.rotary));
        }
        there.out = static_cast<float*>(BeforePage::allocate(run.out.bytes(), 4));
        vit::encoder(there, {vit::serial(), {BeforePage::scratch, BeforePage::release}});
        EXPECT(memcmp(there.out, run.out.data(), static_cast<size_t>(run.out.bytes())) == 0,
               "the output differs");
        BeforePage::release(there.out);
        BeforePage::release(const_cast<float*>(there.input));
        if (problem.has_rotary) BeforePage::release(const_cast<float*>(there.rotary));
        for (const vit::EncoderBlock& b : block) {
          BeforePage::release(const_cast<void*>(b.weights));
          BeforePage::release(const_cast<float*>(b.biases));
        }
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "out_of_memory")) test_out_of_memory();
  if (wanted(argc, argv, "cancellation")) test_cancellation();
  if (wanted(argc, argv, "ends_of_pages")) test_ends_of_pages();
  return finish();
}
