// The protocol by which calls share a pool of threads and the cores: every unit runs once, a call
// ends without the pool, late or nested tasks do no harm, and no call has more than its share.
#include "custom_ops/cpu/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/cpu/cores.h"
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

vit::Team on(Pool& pool, int64_t threads, std::function<bool()> is_cancelled = nullptr) {
  const auto schedule = [&pool](std::function<void()> task) { pool.schedule(std::move(task)); };
  return vit::Team(threads, schedule, std::move(is_cancelled));
}

void call(Pool& pool, int64_t threads, int64_t cost, Units& units,
          std::function<bool()> is_cancelled = nullptr) {
  vit::Team team = on(pool, threads, std::move(is_cancelled));
  const vit::ParallelFor parallel_for = team.parallel_for();
  parallel_for.run(&team, static_cast<int64_t>(units.runs.size()), cost, Units::body, &units);
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
    call(pool, threads + 1, kCostly, units, [&] { return done >= 10; });
    EXPECT(done >= 10 && done <= 12, "%d units have run", done.load());
  }
}

// A team whose threads work until they shall leave or all work is done.
struct Workers {
  std::atomic<int> threads{0}, most{0}, left{0};
  std::atomic<bool> done{false};
  vit::ParallelFor parallel_for{};

  static void body(void* argument, bool helps) {
    Workers& self = *static_cast<Workers*>(argument);
    const int now = ++self.threads;
    if (now > self.most) self.most = now;
    while (!self.done) {
      if (!self.parallel_for.stays(self.parallel_for.pool, helps)) {
        ++self.left;
        break;
      }
      std::this_thread::yield();
    }
    --self.threads;
  }
  // Starts the call on its own thread.
  std::thread start(vit::Team& team, int64_t most) {
    parallel_for = team.parallel_for();
    return std::thread(
        [this, most] { parallel_for.run_team(parallel_for.pool, most, body, this); });
  }
  void expect(int count, const char* when) const {
    for (int i = 0; i < 5000 && threads != count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT(threads == count, "%d threads, not %d: %s", threads.load(), count, when);
  }
};

void test_calls_share_the_cores() {
  testing("shares");
  vit::choose_core_count(4);
  {
    Pool pool(8);
    vit::Team teams[5] = {on(pool, 16), on(pool, 16), on(pool, 16), on(pool, 16), on(pool, 16)};
    Workers workers[5];
    std::thread calls[5];
    calls[0] = workers[0].start(teams[0], 16);
    workers[0].expect(4, "alone");
    calls[1] = workers[1].start(teams[1], 16);
    workers[1].expect(2, "the second of two");
    workers[0].expect(2, "the first of two");
    for (int i = 2; i < 5; ++i) calls[i] = workers[i].start(teams[i], 16);
    for (const Workers& one : workers) one.expect(1, "more calls than cores");
    EXPECT(vit::current_load().threads == 5, "%lld threads", number(vit::current_load().threads));
    for (int i = 1; i < 5; ++i) {
      workers[i].done = true;
      calls[i].join();
    }
    workers[0].expect(4, "alone again");
    // As many threads leave as are too many, which two calls of 4 cores are by two.
    EXPECT(workers[0].left == 3, "%d threads have left", workers[0].left.load());
    workers[0].done = true;
    calls[0].join();
  }
  const vit::Load load = vit::current_load();
  EXPECT(load.calls == 0 && load.threads == 0, "%lld calls, %lld threads", number(load.calls),
         number(load.threads));
  vit::choose_core_count(8);
}

void test_no_more_threads_than_asked_for() {
  testing("few threads");
  Pool pool(8);
  vit::Team three = on(pool, 3);
  for (int64_t most : {1, 2, 100}) {
    Workers workers;
    std::thread call = workers.start(three, most);
    workers.expect(static_cast<int>(std::min<int64_t>(most, 3)), "of at most three");
    workers.done = true;
    call.join();
    EXPECT(workers.most <= most, "%d threads of %lld", workers.most.load(), number(most));
  }
}

// The cores of threads that never start are free again when the call ends.
void test_cores_of_a_pool_that_does_not_start() {
  testing("cores of a pool that does not start");
  Pool pool(0);
  Units units(100);
  call(pool, 4, kCostly, units);
  EXPECT(vit::current_load().threads == 0, "%lld threads", number(vit::current_load().threads));
  pool.run_late();
  EXPECT(vit::current_load().threads == 0, "%lld threads after the call",
         number(vit::current_load().threads));
}

void test_many_calls() {
  testing("many calls");
  vit::choose_core_count(3);
  {
    Pool pool(3);
    std::atomic<int> right{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&] {
        for (int turn = 0; turn < 50; ++turn) {
          Units units(40);
          call(pool, 4, kCostly, units);
          right += units.once();
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT(right == 400, "%d calls of 400 are right", right.load());
  }
  const vit::Load load = vit::current_load();
  EXPECT(load.calls == 0 && load.threads == 0, "%lld calls, %lld threads", number(load.calls),
         number(load.threads));
  vit::choose_core_count(8);
}

}  // namespace

int main() {
  vit::choose_core_count(8);
  test_every_unit_runs_once();
  test_a_second_thread_runs();
  test_the_call_does_not_wait_for_the_pool();
  test_calls_from_threads_of_the_pool();
  test_cancellation();
  test_calls_share_the_cores();
  test_no_more_threads_than_asked_for();
  test_cores_of_a_pool_that_does_not_start();
  test_many_calls();
  return finish();
}
