// How units of work are shared out among threads: for those who make a ParallelFor of threads.
#ifndef CUSTOM_OPS_CC_SHARES_H_
#define CUSTOM_OPS_CC_SHARES_H_

#include <stdint.h>

namespace vit {

// Parts of [0, total) for threads that ask for them, in order: large parts first, since a kernel
// keeps what it has packed from one unit to its neighbour, and ever smaller ones, so that all
// threads end together (guided self-scheduling; Polychronopoulos and Kuck, 1987).
class Shares {
 public:
  // No part but the last has fewer than `least` units.
  Shares(int64_t total, int64_t threads, int64_t least)
      : total_(total), threads_(threads), least_(least) {}

  // The next part; false when there is none.
  bool take(int64_t* begin, int64_t* end) {
    int64_t next = __atomic_load_n(&next_, __ATOMIC_RELAXED);
    int64_t after;
    do {
      const int64_t left = total_ - next;
      if (left <= 0) return false;
      const int64_t fair = left / (2 * threads_);
      const int64_t count = fair < least_ ? least_ : fair;
      after = next + (count < left ? count : left);
    } while (!__atomic_compare_exchange_n(&next_, &next, after, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    *begin = next;
    *end = after;
    return true;
  }

 private:
  const int64_t total_, threads_, least_;  // the last two at least 1
  int64_t next_ = 0;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_SHARES_H_
