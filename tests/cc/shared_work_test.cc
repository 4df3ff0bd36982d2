// The protocol by which a call shares its units with a pool of threads: every unit runs once, a
// call ends without the pool, and late or nested tasks do no harm.
#include "custom_ops/tf/shared_work.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/cc/check.h"
#include "tests/cc/pool.h"

namespace {

using namespace vit_test;

constexpr int64_t kCostly = 100'000'000;  // cycles: each unit is a chunk

// How often each unit has run.
struct Units {
  explicit Units(int64_t total) : runs(static_cast<size_t>(total)) {}

  static void body(void* argument, int64_t begin, int64_t end) {
    Units& self = *static_cast<Units*>(argument);
    for (int64_t i = begin; i < end; ++i) {
      // Not atomic: the sanitizer reports two threads at the same unit, and a call that returns
      // before its units are done.
      ++self.runs[static_cast<size_t>(i)];
      if (self.unit) self.unit();
    }
  }
  bool once() const {
    return std::all_of(runs.begin(), runs.end(), [](int count) { return count == 1; });
  }
  void expect_once() const { EXPECT(once(), "a unit does not run, or runs twice"); }

  std::vector<int> runs;
  std::function<void()> unit;
};

void call(Pool& pool, int64_t threads, int64_t cost, Units& units,
          vit::Cancellation cancellation = {}) {
  const auto schedule = [&pool](auto&& task) { pool.schedule(task); };
  vit::run_shared(threads, schedule, static_cast<int64_t>(units.runs.size()), cost, Units::body,
                  &units, cancellation);
}

void test_every_unit_runs_once() {
  Pool pool(3);
  for (int64_t total : {0, 1, 2, 7, 100, 5000}) {
    for (int64_t cost : {int64_t{0}, int64_t{1}, int64_t{9000}, kCostly}) {
      testing("%lld units of %lld cycles", number(total), number(cost));
      for (int turn = 0; turn < 20; ++turn) {
        Units units(total);
        call(pool, 4, cost, units);
        units.expect_once();
      }
    }
  }
}

void test_a_second_thread_runs() {
  testing("a second thread");
  Pool pool(1);
  Units units(2);
  // Each of the two units waits for the other: one thread alone would wait for ever.
  std::atomic<int> begun{0};
  units.unit = [&] {
    ++begun;
    while (begun < 2) std::this_thread::yield();
  };
  call(pool, 2, kCostly, units);
  units.expect_once();
}

void test_the_call_does_not_wait_for_the_pool() {
  testing("a pool that does not start");
  Pool pool(0);
  {
    Units units(100);
    call(pool, 4, kCostly, units);
    units.expect_once();
  }
  // The tasks start after the call has returned, and its units are gone.
  pool.run_late();
}

void test_calls_from_threads_of_the_pool() {
  testing("nested calls");
  Pool pool(2);
  Units outer(8);
  std::atomic<int> inner_runs{0};
  outer.unit = [&] {
    Units inner(50);
    call(pool, 3, kCostly, inner);
    inner_runs += inner.once();
  };
  call(pool, 3, kCostly, outer);
  outer.expect_once();
  EXPECT(inner_runs == 8, "%d inner calls have run each unit once", inner_runs.load());
}

void test_cancellation() {
  testing("cancellation");
  for (int threads : {0, 2}) {
    Pool pool(threads);
    Units units(1000);
    std::atomic<int> done{0};
    units.unit = [&] { ++done; };
    const vit::Cancellation after_ten = {
        [](void* source) { return *static_cast<std::atomic<int>*>(source) >= 10; }, &done};
    call(pool, threads + 1, kCostly, units, after_ten);
    EXPECT(done >= 10 && done <= 12, "%d units have run", done.load());
  }
}

}  // namespace

int main() {
  test_every_unit_runs_once();
  test_a_second_thread_runs();
  test_the_call_does_not_wait_for_the_pool();
  test_calls_from_threads_of_the_pool();
  test_cancellation();
  return finish();
}
