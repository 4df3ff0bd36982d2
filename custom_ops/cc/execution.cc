#include "custom_ops/cc/execution.h"

#include <stdlib.h>

namespace vit {

ParallelFor serial() {
  return {[](void*, int64_t total, int64_t, RangeBody body, void* argument) {
            if (total > 0) body(argument, 0, total);
          },
          [](void*, int64_t, TeamBody body, void* argument) { body(argument, false); }, nullptr, 1};
}

Allocator heap() {
  // aligned_alloc requires whole multiples of the alignment.
  return {
      [](int64_t bytes) { return aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)); },
      free};
}

}  // namespace vit
