// How units of work are shared out among threads: for those who make a ParallelFor of threads.
#ifndef CUSTOM_OPS_CC_SHARES_H_
#define CUSTOM_OPS_CC_SHARES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace vit {

// Parts of [0, total) for threads that ask for them, in order: large parts first, since a kernel
// keeps what it has packed from one unit to its neighbour, and ever smaller ones, so that all
// threads end together (guided self-scheduling; Polychronopoulos and Kuck, 1987).
class Shares {
 public:
  // No part but the last has fewer than `least` units.
  Shares(int64_t total, int64_t threads, int64_t least)
      : total_(total), threads_(threads), least_(std::max<int64_t>(least, 1)) {}

  // The next part; false when there is none.
  bool take(int64_t* begin, int64_t* end) {
    int64_t next = next_.load(std::memory_order_relaxed);
    do {
      if (next >= total_) return false;
      const int64_t left = total_ - next;
      *end = next + std::min(left, std::max(least_, left / (2 * threads_)));
    } while (!next_.compare_exchange_weak(next, *end, std::memory_order_relaxed));
    *begin = next;
    return true;
  }

 private:
  const int64_t total_, threads_, least_;
  std::atomic<int64_t> next_{0};
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_SHARES_H_
