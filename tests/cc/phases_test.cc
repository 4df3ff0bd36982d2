// Kernels that run one after the other on threads that stay: every unit runs once, after all units
// of the phases before it, whichever threads join, and when; calls end after a failure.
#include "custom_ops/cpu/phases.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "custom_ops/cpu/cores.h"
#include "custom_ops/cpu/team.h"
#include "tests/cc/memory.h"
#include "tests/cc/pool.h"
#include "tests/cc/threads.h"

namespace {

using namespace vit_test;
using vit::Result;

// Unit i computes to[i] = from[i] + from[i + 1] + number, so that it reads what other units of the
// phase before have written. Nothing is atomic: the sanitizer reports a unit that runs too early.
struct Sums {
  const std::vector<uint64_t>* from;
  std::vector<uint64_t>* to;
  uint64_t number;
  int64_t units;
  const std::function<void()>* unit;  // called by each unit, or null
};

struct SumsKernel {
  static int64_t units(const Sums& problem) { return problem.units; }
  static double unit_cycles(const Sums&) { return 4000; }
  static int64_t scratch_bytes(const Sums& problem) { return 8 * (problem.units % 3); }
  static void run(const Sums& problem, int64_t begin, int64_t end, void* scratch) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t size = problem.from->size(), at = static_cast<size_t>(i);
      const uint64_t sum = (*problem.from)[at % size] + (*problem.from)[(at + 1) % size];
      // Scratch belongs to one thread.
      uint64_t* const kept = scratch_bytes(problem) ? static_cast<uint64_t*>(scratch) : nullptr;
      if (kept) *kept = sum;
      if (problem.unit) (*problem.unit)();
      (*problem.to)[at] = (kept ? *kept : sum) + problem.number;
    }
  }
};

// A chain of phases and its expected sums.
class Chain {
 public:
  Chain(uint64_t seed, int phases, int64_t most_units, std::function<void()> unit = nullptr)
      : unit_(std::move(unit)), values_(static_cast<size_t>(phases) + 1) {
    Random random(seed);
    values_[0] = {1, 2, 3};
    expected_ = values_[0];
    for (size_t i = 1; i < values_.size(); ++i) {
      const int64_t units = random.below(most_units + 1);
      // A kernel without units is left out; then the next one has nothing to read.
      values_[i].resize(static_cast<size_t>(units));
      const size_t from = last_;
      phases_.add(vit::Kernel<Sums>::of<SumsKernel>(),
                  Sums{&values_[from], &values_[i], i, units, unit_ ? &unit_ : nullptr});
      if (units == 0) continue;
      std::vector<uint64_t> next;
      for (size_t j = 0; j < values_[i].size(); ++j) {
        next.push_back(expected_[j % expected_.size()] + expected_[(j + 1) % expected_.size()] + i);
      }
      expected_ = next;
      last_ = i;
    }
  }
  Result run(vit::ParallelFor parallel_for) { return phases_.run(execution(parallel_for)); }
  bool right() const { return values_[last_] == expected_; }
  void expect(vit::ParallelFor parallel_for) {
    EXPECT(run(parallel_for) == Result::kOk, "the phases report that they failed");
    EXPECT(right(), "a unit ran too early, twice, or never");
    EXPECT(scratch_use().in_use == 0, "scratch is not released");
  }

 private:
  const std::function<void()> unit_;
  vit::Phases phases_;
  std::vector<std::vector<uint64_t>> values_;
  std::vector<uint64_t> expected_;
  size_t last_ = 0;
};

// As the ops run, on a pool.
vit::Team on(Pool& pool, int64_t threads) {
  return vit::Team(threads,
                   [&pool](std::function<void()> task) { pool.schedule(std::move(task)); });
}

void test_no_phases() {
  testing("no phases");
  for (int phases : {0, 3}) Chain(1, phases, 0).expect(vit::serial());
}

void test_many_short_phases() {
  uint64_t seed = 0;
  for (int threads : {1, 2, 3, 8}) {
    testing("%d threads", threads);
    Pool pool(threads - 1);
    for (int turn = 0; turn < 8; ++turn) {
      Chain(++seed, 300, turn < 4 ? 3 : 60).expect(vit::serial());
      Shuffled shuffled(seed, threads);
      Chain(++seed, 300, turn < 4 ? 3 : 60).expect(shuffled.parallel_for());
      vit::Team team = on(pool, threads);
      Chain(++seed, 300, turn < 4 ? 3 : 60).expect(team.parallel_for());
    }
  }
}

// Threads that join in the middle, after a while or when all is done, and threads that leave
// between their units and come again.
void test_threads_that_come_and_go() {
  struct Restless {
    Random random{7};
    std::atomic<int> questions{0};

    static void run_team(void* self_, int64_t, vit::TeamBody body, void* argument) {
      Restless& self = *static_cast<Restless*>(self_);
      std::vector<std::thread> threads;
      for (int64_t i = 1; i < 5; ++i) {
        const auto delay = std::chrono::microseconds(self.random.below(3000));
        threads.emplace_back([=] {
          for (int turn = 0; turn < 20; ++turn) {
            std::this_thread::sleep_for(delay / (turn + 1));
            body(argument, true);
          }
        });
      }
      body(argument, false);
      for (std::thread& thread : threads) thread.join();
    }
    vit::ParallelFor parallel_for() {
      return {nullptr, run_team, this, 5, nullptr, [](void* self, bool helps) {
                return !helps || ++static_cast<Restless*>(self)->questions % 3 != 0;
              }};
    }
  } restless;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    testing("restless threads, seed %d", static_cast<int>(seed));
    Chain(seed, 400, 9).expect(restless.parallel_for());
  }
}

// A pool whose threads are busy with other work.
void test_threads_that_never_join() {
  testing("a pool that does not start");
  Pool pool(0);
  vit::Team team = on(pool, 4);
  Chain(3, 100, 9).expect(team.parallel_for());
  // The tasks start after the call has returned, and its phases are gone.
  pool.run_late();
}

// The other threads wait for one unit for so long that they sleep.
void test_a_slow_unit() {
  testing("a slow unit");
  std::atomic<int> count{0};
  Chain chain(4, 40, 3, [&] {
    if (++count % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  Shuffled shuffled(4, 3);
  chain.expect(shuffled.parallel_for());
}

void test_calls_at_the_same_time() {
  testing("8 callers");
  Pool pool(3);
  std::atomic<int> right{0};
  std::vector<std::thread> callers;
  for (uint64_t i = 0; i < 8; ++i) {
    callers.emplace_back([&, i] {
      for (uint64_t turn = 0; turn < 5; ++turn) {
        vit::Team team = on(pool, 4);
        Chain chain(10 * i + turn, 100, 9);
        right += chain.run(team.parallel_for()) == Result::kOk && chain.right();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT(right == 40, "%d calls of 40 are right", right.load());
  EXPECT(scratch_use().in_use == 0, "scratch is not released");
}

void test_cancellation() {
  struct Cancelled : Shuffled {
    const std::atomic<int>& units;
    Cancelled(int threads, const std::atomic<int>& units) : Shuffled(6, threads), units(units) {}
    vit::ParallelFor parallel_for() {
      return {run, run_team, static_cast<Shuffled*>(this), threads, [](void* pool) {
                return static_cast<Cancelled*>(static_cast<Shuffled*>(pool))->units >= 50;
              }};
    }
  };
  for (int threads : {1, 3}) {
    testing("cancellation on %d threads", threads);
    std::atomic<int> units{0};
    // Phases of at most two units, which are a chunk each: one chunk of a thread may follow.
    Chain chain(5, 1000, 2, [&] { ++units; });
    Cancelled cancelled(threads, units);
    chain.run(cancelled.parallel_for());
    EXPECT(units >= 50 && units <= 50 + 2 * threads, "%d units have run", units.load());
    EXPECT(scratch_use().in_use == 0, "scratch is not released");
  }
}

// The second thread to join gets no scratch, while the first one waits in a unit.
void test_no_memory_for_a_second_thread() {
  testing("no memory for a second thread");
  const int64_t before = scratch_use().calls;
  Chain chain(6, 100, 9, [&] {
    while (scratch_use().calls < before + 2) std::this_thread::yield();
  });
  scratch_use().left = 1;
  Shuffled two(6, 2);
  EXPECT(chain.run(two.parallel_for()) == Result::kOutOfMemory, "the call does not report it");
  EXPECT(scratch_use().in_use == 0, "scratch is not released");
  scratch_use().left = 0;
  EXPECT(Chain(6, 100, 9).run(vit::serial()) == Result::kOutOfMemory,
         "the call does not report it");
  scratch_use().left = INT64_MAX;
  Chain(6, 100, 9).expect(two.parallel_for());
}

}  // namespace

int main() {
  vit::choose_core_count(8);
  test_no_phases();
  test_many_short_phases();
  test_threads_that_come_and_go();
  test_threads_that_never_join();
  test_a_slow_unit();
  test_calls_at_the_same_time();
  test_cancellation();
  test_no_memory_for_a_second_thread();
  return finish();
}
