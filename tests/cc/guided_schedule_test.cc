// GuidedSchedule: every unit goes to exactly one thread, whatever the timing of the threads, in
// chunks that never become larger.
#include "custom_ops/cc/guided_schedule.h"

#include <stdio.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace {

int failures = 0;

void expect(bool condition, const char* what, int64_t total, int64_t threads, int64_t min_chunk) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "failed: %s (%lld units, %lld threads, chunks of at least %lld)\n", what,
          static_cast<long long>(total), static_cast<long long>(threads),
          static_cast<long long>(min_chunk));
}

void check_chunks(int64_t total, int64_t threads, int64_t min_chunk) {
  vit::GuidedSchedule schedule(total, threads, min_chunk);
  int64_t begin, end, reached = 0, before = total, count = 0;
  while (schedule.next(&begin, &end)) {
    const int64_t size = end - begin;
    expect(begin == reached && size >= 1, "chunks follow one another", total, threads, min_chunk);
    expect(size >= min_chunk || end == total, "only the last is small", total, threads, min_chunk);
    expect(size <= before, "chunks get no larger", total, threads, min_chunk);
    if (count == 0) {
      // So the thread that takes the first chunk does not finish last.
      expect(size <= std::max(min_chunk, total / threads), "the first is at most the average",
             total, threads, min_chunk);
    }
    reached = end, before = size, ++count;
  }
  expect(reached == std::max<int64_t>(total, 0), "all units are taken", total, threads, min_chunk);
  expect(!schedule.next(&begin, &end), "no chunk follows the last one", total, threads, min_chunk);
}

void check_threads(int64_t total, int threads) {
  vit::GuidedSchedule schedule(total, threads, 1);
  std::vector<std::atomic<int>> taken(static_cast<size_t>(total));
  const auto work = [&] {
    for (int64_t begin, end; schedule.next(&begin, &end);) {
      for (int64_t i = begin; i < end; ++i) ++taken[static_cast<size_t>(i)];
    }
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  const bool once = std::all_of(taken.begin(), taken.end(), [](const auto& n) { return n == 1; });
  expect(once, "every unit is taken once", total, threads, 1);
}

}  // namespace

int main() {
  for (const int64_t total : {-1, 0, 1, 2, 3, 7, 96, 97, 100000}) {
    for (const int64_t threads : {1, 2, 3, 16, 1000}) {
      for (const int64_t min_chunk : {1, 2, 50, 1000000}) check_chunks(total, threads, min_chunk);
    }
  }
  constexpr int64_t kMost = INT64_MAX;
  check_chunks(kMost, 2, kMost / 16);
  check_chunks(kMost, 1, kMost);
  for (const int threads : {1, 2, 5}) check_threads(20011, threads);
  return failures != 0;
}
