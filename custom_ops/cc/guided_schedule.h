// How threads divide units of work among them, for implementations of ParallelFor.
#ifndef CUSTOM_OPS_CC_GUIDED_SCHEDULE_H_
#define CUSTOM_OPS_CC_GUIDED_SCHEDULE_H_

#include <stdint.h>

namespace vit {

// Splits [0, total) into chunks, which threads take in order. The first chunks are large, because a
// kernel reuses what it packed for one unit in the next unit. Then chunks become smaller, so that
// all threads finish at about the same time (guided self-scheduling; Polychronopoulos and Kuck,
// 1987).
class GuidedSchedule {
 public:
  // Every chunk except the last has at least `min_chunk` units, and at most `max_chunk`.
  GuidedSchedule(int64_t total, int64_t threads, int64_t min_chunk, int64_t max_chunk = INT64_MAX)
      : total_(total), threads_(threads), min_chunk_(min_chunk), max_chunk_(max_chunk) {}

  // Sets the next chunk; returns false when no chunk is left.
  bool next(int64_t* begin, int64_t* end) {
    int64_t first = __atomic_load_n(&next_, __ATOMIC_RELAXED);
    int64_t after;
    do {
      const int64_t left = total_ - first;
      if (left <= 0) return false;
      const int64_t guided = left / (2 * threads_);
      const int64_t most = guided < max_chunk_ ? guided : max_chunk_;
      const int64_t count = most < min_chunk_ ? min_chunk_ : most;
      after = first + (count < left ? count : left);
    } while (!__atomic_compare_exchange_n(&next_, &first, after, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    *begin = first;
    *end = after;
    return true;
  }

 private:
  const int64_t total_, threads_, min_chunk_, max_chunk_;  // all but total_ are at least 1
  int64_t next_ = 0;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_GUIDED_SCHEDULE_H_
