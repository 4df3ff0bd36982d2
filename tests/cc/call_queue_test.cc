// Calls run in their order, never more at a time than there are cores, and each of them once.
#include "custom_ops/cpu/call_queue.h"

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

vit::CallQueue::Schedule on(Pool& pool) {
  return [&pool](std::function<void()> task) { pool.schedule(std::move(task)); };
}

void wait_for(const std::atomic<int>& count, int expected) {
  for (int i = 0; i < 10000 && count < expected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT(count == expected, "%d calls, not %d", count.load(), expected);
}

void test_a_lone_call_runs_here() {
  testing("a lone call");
  vit::CallQueue queue;
  Pool pool(1);
  for (int turn = 0; turn < 3; ++turn) {
    std::thread::id where;
    queue.run([&] { where = std::this_thread::get_id(); }, on(pool));
    EXPECT(where == std::this_thread::get_id(), "the call runs on another thread");
  }
}

// While the first call is active, the others come in their order.
void test_order() {
  testing("order");
  vit::choose_core_count(1);
  vit::CallQueue queue;
  Pool pool(3);
  std::vector<int> order;  // The sanitizer reports two calls at the same time.
  std::atomic<int> done{0};
  queue.run(
      [&] {
        for (int i = 0; i < 20; ++i) {
          queue.run(
              [&, i] {
                order.push_back(i);
                ++done;
              },
              on(pool));
        }
        EXPECT(done == 0, "a call runs beside the first one");
      },
      on(pool));
  wait_for(done, 20);
  EXPECT(std::is_sorted(order.begin(), order.end()), "the calls run in another order");
  vit::choose_core_count(8);
}

void test_as_many_as_cores() {
  for (int cores : {1, 2, 3}) {
    testing("%d cores", cores);
    vit::choose_core_count(cores);
    vit::CallQueue queue;
    Pool pool(6);
    std::atomic<int> now{0}, most{0}, done{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&] {
        for (int turn = 0; turn < 25; ++turn) {
          std::atomic<bool> ended{false};
          queue.run(
              [&] {
                const int count = ++now;
                for (int old = most; old < count && !most.compare_exchange_weak(old, count);) {
                }
                std::this_thread::yield();
                --now;
                ++done;
                ended = true;
              },
              on(pool));
          while (!ended) std::this_thread::yield();
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT(done == 200, "%d calls of 200 have run", done.load());
    EXPECT(most <= cores, "%d calls at a time", most.load());
  }
  vit::choose_core_count(8);
}

}  // namespace

int main() {
  vit::choose_core_count(8);
  test_a_lone_call_runs_here();
  test_order();
  test_as_many_as_cores();
  return finish();
}
