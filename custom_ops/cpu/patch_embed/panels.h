// Products with the matrix of patches, in blocks of rows and panels of columns.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_PANELS_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_PANELS_H_

#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/patch_embed/pack.h"
#include "custom_ops/cpu/scratch.h"

namespace vit {
namespace VIT_ISA {

// Maximum rows of a block. The rows of a block stay packed while the panels of the other side are
// packed and multiplied with them, one after the other. More rows make the packing of panels
// cheaper (5 % of the time with 224), but every thread that takes a panel of a block packs the rows
// again.
constexpr int64_t kMaxRows = 392;
// Maximum bytes of the rows of a block, unless rows are so long that few would be left.
constexpr int64_t kMaxRowBytes = 4 * 1024 * 1024;
constexpr int64_t kFewRows = 24;
// With fewer units for each thread, blocks of rows become smaller, so that all threads end at about
// the same time.
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kMinRows = 48;

// Splits a matrix into blocks of rows and panels of columns. Each pair of them is a unit of work.
struct MatrixBlocking {
  Blocking rows, vectors;

  // Panels of columns are whole vectors of `lanes`; a packed row takes `row_bytes`.
  MatrixBlocking(int64_t row_count, int64_t row_bytes, int64_t column_count, int lanes,
                 int64_t threads)
      : rows(row_count, 1), vectors(ceil_divide(column_count, lanes), kMaxVectors) {
    int64_t most = kMaxRowBytes / row_bytes;
    if (most < kFewRows) most = kFewRows;
    int64_t count = ceil_divide(row_count, most < kMaxRows ? most : kMaxRows);
    if (vectors.count && count * vectors.count < kUnitsPerThread * threads) {
      const int64_t wanted = ceil_divide(kUnitsPerThread * threads, vectors.count);
      const int64_t useful = ceil_divide(row_count, kMinRows);
      const int64_t more = wanted < useful ? wanted : useful;
      if (more > count) count = more;
    }
    rows.count = count;
  }
  int64_t units() const { return rows.count * vectors.count; }
  int64_t most_rows() const { return rows.count ? ceil_divide(rows.total, rows.count) : 0; }
};

// The columns of one panel.
struct Panel {
  int64_t column;
  int vectors;
};

// The approximate cycles of one of `units` units of a product of all patches with the kernel, at 16
// multiplications and additions a cycle, plus a constant for every unit.
inline double product_cycles(const PatchShape& shape, int64_t units) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.patches()) *
             static_cast<double>(shape.patch_elements()) * static_cast<double>(shape.features) /
             16 / static_cast<double>(units) +
         500;
}

// Maximum Elements along the sum in one panel: 256 KiB with AVX-512, which stay in the L2 cache
// while they stream through the L1 cache. Panels that fit in the L1 cache (128 Elements) were
// slower, 250 against 266 GFLOP/s (one thread of a Zen 5), because each panel loads and stores all
// sums.
constexpr int64_t kMaxDepth = 1024;

// c [rows, vectors * kLanes] = a [rows, depth] b. pack(first, count, to) packs `count` numbers of b
// along the sum, from `first` on, into `to` as a panel. Rows of a are `step` numbers apart.
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

// A kernel (cpu/kernel.h) for the product of the matrix of patches, or of its gradient, with the
// weights or their transpose. A unit is a block of rows and a panel of columns. `Operands` has
//   depth(shape), columns(shape): numbers along the sum, and columns of the result;
//   pack_rows(problem, row, rows, to): a block of the left-hand side;
//   pack_kernel(problem, panel, first, count, to): `pack` of multiply_panel for a panel;
//   write(problem, row, rows, panel, sums): the result of a unit, [rows, panel.vectors * kLanes].
template <class S, class Problem, class Operands>
struct PanelKernel {
  using T = Accumulator<S>;

  static MatrixBlocking blocks_of(const Problem& problem) {
    const PatchShape& shape = problem.shape;
    return MatrixBlocking(patch_rows(shape), row_bytes<S>(Operands::depth(shape)),
                          Operands::columns(shape), kLanes<T>, problem.threads);
  }

  static int64_t units(const Problem& problem) { return blocks_of(problem).units(); }

  static double unit_cycles(const Problem& problem) {
    return product_cycles(problem.shape, units(problem));
  }

  static int64_t scratch_bytes(const Problem& problem) {
    const int64_t rows = blocks_of(problem).most_rows();
    return Scratch::bytes<Number<S>>(rows * row_step<S>(Operands::depth(problem.shape))) +
           Scratch::bytes<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>) +
           Scratch::bytes<T>(rows * kMaxVectors * kLanes<T>);
  }

  static void run(const Problem& problem, int64_t begin, int64_t end, void* memory) {
    const MatrixBlocking blocks = blocks_of(problem);
    const int64_t depth = Operands::depth(problem.shape);
    Scratch scratch(memory);
    Number<S>* left = scratch.take<Number<S>>(blocks.most_rows() * row_step<S>(depth));
    Element<S>* right = scratch.take<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>);
    T* sums = scratch.take<T>(blocks.most_rows() * kMaxVectors * kLanes<T>);

    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit / blocks.vectors.count, index = unit % blocks.vectors.count;
      const int64_t row = blocks.rows.begin(block), rows = blocks.rows.size(block);
      if (packed != block) {
        Operands::pack_rows(problem, row, rows, left);
        packed = block;
      }
      const Panel panel = {blocks.vectors.begin(index) * kLanes<T>,
                           static_cast<int>(blocks.vectors.size(index))};
      const auto pack = [&](int64_t first, int64_t count, Element<S>* to) {
        Operands::pack_kernel(problem, panel, first, count, to);
      };
      multiply_panel<S>(rows, panel.vectors, depth, left, row_step<S>(depth), pack, right, sums);
      Operands::write(problem, row, rows, panel, sums);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_PANELS_H_
