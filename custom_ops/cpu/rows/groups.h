// Sums over rows that do not depend on the number of threads: each unit adds the rows of a group,
// then the sums of the groups are added.
#ifndef CUSTOM_OPS_CPU_ROWS_GROUPS_H_
#define CUSTOM_OPS_CPU_ROWS_GROUPS_H_

#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/rows/row_kernels.h"
#include "custom_ops/cpu/simd/conversions.h"

namespace vit {
namespace VIT_ISA {

// At most 256 groups, of at least 16 rows if there are as many.
constexpr int64_t kMostGroups = 256, kFewRows = 16;

inline Blocking row_groups(int64_t rows) {
  const int64_t size = ceil_divide(rows, kMostGroups);
  return Blocking(rows, size < kFewRows ? kFewRows : size);
}

// The floats between the sums of two groups: whole vectors of every instruction set.
constexpr int64_t sums_stride(int64_t width) { return round_up(width, 16); }

// Calls row(index, sums) for the rows of each group, whose `arrays` sums of columns are 0 before.
// Null sums are not set.
template <class Row>
VIT_INLINE void for_rows(int64_t rows, int64_t width, int64_t arrays, float* sums, int64_t begin,
                         int64_t end, const Row& row) {
  const Blocking groups = row_groups(rows);
  const int64_t size = arrays * sums_stride(width);
  for (int64_t group = begin; group < end; ++group) {
    float* const own = sums ? sums + group * size : nullptr;
    for (int64_t j = 0; own && j < size; ++j) own[j] = 0;
    const int64_t first = groups.begin(group), count = groups.size(group);
    for (int64_t i = first; i < first + count; ++i) row(i, own);
  }
}

// A unit is a vector of columns. S: elements of the result.
template <class S>
struct ColumnSums {
  static int64_t units(const ColumnSumsProblem& problem) {
    return ceil_divide(problem.width, kLanes<float>);
  }

  static double unit_cycles(const ColumnSumsProblem& problem) {
    return 4 * static_cast<double>(row_groups(problem.rows).count) + 20;
  }

  static int64_t scratch_bytes(const ColumnSumsProblem&) { return 0; }

  static void run(const ColumnSumsProblem& problem, int64_t begin, int64_t end, void*) {
    const int64_t groups = row_groups(problem.rows).count;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t j = unit * kLanes<float>;
      const float* from = problem.sums + j;
      Vector<float> sum = {};
      for (int64_t i = 0; i < groups; ++i, from += problem.stride) sum += load(from);
      store_first(static_cast<S*>(problem.out) + j, sum, problem.width - j);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ROWS_GROUPS_H_
