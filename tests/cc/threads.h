// Implementations of ParallelFor for tests.
#ifndef TESTS_CC_THREADS_H_
#define TESTS_CC_THREADS_H_

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/cc/execution.h"
#include "tests/cc/check.h"

namespace vit_test {

// Runs ranges of random lengths in random order on several threads.
struct Shuffled {
  Random random;
  int threads;

  Shuffled(uint64_t seed, int threads) : random(seed), threads(threads) {}
  vit::ParallelFor parallel_for() { return {run, run_team, this, threads}; }

  static void run(void* pool, int64_t total, int64_t, vit::RangeBody body, void* argument) {
    Shuffled& self = *static_cast<Shuffled*>(pool);
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t begin = 0; begin < total;) {
      const int64_t most = 1 + self.random.below(total);
      const int64_t left = total - begin;
      const int64_t end = begin + 1 + self.random.below(most < left ? most : left);
      ranges.emplace_back(begin, end);
      begin = end;
    }
    for (size_t i = 1; i < ranges.size(); ++i) {
      const int64_t other = self.random.below(static_cast<int64_t>(i) + 1);
      std::swap(ranges[i], ranges[static_cast<size_t>(other)]);
    }
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i; (i = next.fetch_add(1)) < ranges.size();) {
        body(argument, ranges[i].first, ranges[i].second);
      }
    };
    std::vector<std::thread> workers;
    for (int i = 1; i < self.threads; ++i) workers.emplace_back(work);
    work();
    for (std::thread& worker : workers) worker.join();
  }

  static void run_team(void* pool, int64_t, vit::TeamBody body, void* argument) {
    std::vector<std::thread> helpers;
    for (int i = 1; i < static_cast<Shuffled*>(pool)->threads; ++i) {
      helpers.emplace_back(body, argument, true);
    }
    body(argument, false);
    for (std::thread& helper : helpers) helper.join();
  }
};

// Runs the units one by one, the last one first.
inline vit::ParallelFor backwards() {
  return {[](void*, int64_t total, int64_t, vit::RangeBody body, void* argument) {
            for (int64_t i = total; i > 0; --i) body(argument, i - 1, i);
          },
          vit::serial().run_team, nullptr, 1};
}

// Expects that `many` computes the bits of `one`, which runs on one thread. `many` runs the units
// one by one from the last on, then ranges in random order on several threads. Runs are
// AttentionRun or PatchRun of one case; `seed` is advanced.
template <class Run>
void expect_same_on_threads(Run& one, Run& many, uint64_t& seed) {
  one.all(vit::serial());
  many.all(backwards());
  many.expect_same(one);
  for (int threads : {2, 3, 5}) {
    Shuffled shuffled(++seed, threads);
    many.all(shuffled.parallel_for());
    many.expect_same(one);
  }
  many.expect_intact();
}

}  // namespace vit_test

#endif  // TESTS_CC_THREADS_H_
