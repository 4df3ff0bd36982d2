// Dimensions and their checks: vectors in which -1 means a dimension that is not known yet.
#ifndef CUSTOM_OPS_TF_DIMS_H_
#define CUSTOM_OPS_TF_DIMS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/platform/errors.h"

namespace vit {

using Dims = std::vector<int64_t>;

template <typename... Parts>
absl::Status invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

inline std::string text(const Dims& dims) {
  auto one = [](std::string* out, int64_t n) {
    n < 0 ? absl::StrAppend(out, "?") : absl::StrAppend(out, n);
  };
  return absl::StrCat("[", absl::StrJoin(dims, ", ", one), "]");
}

inline bool may_equal(int64_t one, int64_t other) { return one < 0 || other < 0 || one == other; }

// `layout` names the dimensions, for example "[B, H, W, C]".
inline absl::Status check_rank(const char* name, const Dims& dims, const char* layout) {
  const size_t rank = 1 + std::count(layout, layout + std::strlen(layout), ',');
  if (dims.size() == rank) return absl::OkStatus();
  return invalid(name, " must be ", layout, ", of rank ", rank, ". Received shape ", text(dims),
                 ".");
}

inline absl::Status check_shape(const char* name, const Dims& dims, const char* layout,
                                const Dims& expected) {
  bool fits = dims.size() == expected.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) fits = may_equal(dims[i], expected[i]);
  if (fits) return absl::OkStatus();
  return invalid(name, " has shape ", text(dims), ", but it must be ", layout, " = ",
                 text(expected), ".");
}

// Multiplies dimensions, which must be known and at least 0. Fails if the result overflows.
inline absl::Status product(const char* name, const Dims& dims, int64_t* result) {
  *result = 1;
  if (std::count(dims.begin(), dims.end(), 0)) *result = 0;
  for (int64_t n : dims) {
    if (__builtin_mul_overflow(*result, n, result)) {
      return invalid(name, " of shape ", text(dims), " would have more than 2^63 - 1 elements.");
    }
  }
  return absl::OkStatus();
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_DIMS_H_
