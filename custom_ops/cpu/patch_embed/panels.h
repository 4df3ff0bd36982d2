// Products with the matrix of patches, in blocks of rows and panels of columns.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_PANELS_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_PANELS_H_

#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/patch_embed/pack.h"
#include "custom_ops/cpu/scratch.h"

namespace vit {
namespace VIT_ISA {

// Rows of a block, at most. A block's rows stay packed while panel after panel of the other side is
// packed and multiplied with them: more rows make the packing of panels cheaper (5 % of the time
// with 224), but every thread that takes a panel of a block packs them again.
constexpr int64_t kMaxRows = 392;
// Nor more than this, unless rows are so long that few would be left.
constexpr int64_t kMaxRowBytes = 4 * 1024 * 1024;
constexpr int64_t kFewRows = 24;
// Fewer units than this make blocks of rows smaller, so that there is work for many threads.
constexpr int64_t kManyUnits = 12;
constexpr int64_t kMinRows = 48;

// Blocks of rows and panels of columns, of which each pair is a unit of work.
struct MatrixBlocking {
  Blocking rows, vectors;

  // Columns in panels of whole vectors of `lanes`; packed rows take `row_bytes`.
  MatrixBlocking(int64_t row_count, int64_t row_bytes, int64_t column_count, int lanes)
      : rows(row_count, 1), vectors(ceil_divide(column_count, lanes), kMaxVectors) {
    int64_t most = kMaxRowBytes / row_bytes;
    if (most < kFewRows) most = kFewRows;
    int64_t count = ceil_divide(row_count, most < kMaxRows ? most : kMaxRows);
    if (vectors.count && count * vectors.count < kManyUnits) {
      const int64_t wanted = ceil_divide(kManyUnits, vectors.count);
      const int64_t useful = ceil_divide(row_count, kMinRows);
      const int64_t more = wanted < useful ? wanted : useful;
      if (more > count) count = more;
    }
    rows.count = count;
  }
  int64_t units() const { return rows.count * vectors.count; }
  int64_t most_rows() const { return rows.count ? ceil_divide(rows.total, rows.count) : 0; }
};

// About the cycles of one of `units` units of a product of all patches with the kernel, at 16
// multiplications and additions a cycle, and something for every unit.
inline double product_cycles(const PatchShape& shape, int64_t units) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.patches()) *
             static_cast<double>(shape.patch_elements()) * static_cast<double>(shape.features) /
             16 / static_cast<double>(units) +
         500;
}

// Elements along the sum in one panel, at most: 256 KiB with AVX-512, which stay in the second
// cache while the first one streams them. Panels that fit the first cache were slower, 250 against
// 266 GFLOP/s with 128 elements (one thread of a Zen 5): each loads and stores all sums.
constexpr int64_t kMaxDepth = 1024;

// c [rows, vectors * kLanes] = a [rows, depth] b, where pack(first, count, to) brings `count`
// numbers along the sum of b, from `first` on, to `to` as a panel. Rows of a are `step` numbers
// apart.
template <class S, class Pack>
static void multiply_panel(int64_t rows, int vectors, int64_t depth, const Number<S>* a,
                           int64_t step, const Pack& pack, Element<S>* b, Accumulator<S>* c) {
  const int64_t elements = elements_of<S>(depth);
  const int64_t columns = vectors * kLanes<Accumulator<S>>;
  const Element<S>* left = reinterpret_cast<const Element<S>*>(a);
  const Blocking depths(elements ? elements : 1, kMaxDepth);
  for (int64_t i = 0; i < depths.count; ++i) {
    const int64_t first = depths.begin(i), count = elements ? depths.size(i) : 0;
    const int64_t numbers = depth - first * kPack<S>;
    const int64_t most = count * kPack<S>;
    pack(first * kPack<S>, numbers < most ? numbers : most, b);
    multiply<Element<S>>(rows, vectors, count, left + first, step / kPack<S>, 1, b, columns, c,
                         columns, i > 0);
  }
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_PANELS_H_
