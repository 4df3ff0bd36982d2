// Patch embedding forward: see patch_embed.h for what, patch_embed_blocks.h for how blocks lie.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_FORWARD_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_FORWARD_H_

#include "custom_ops/cc/patch_embed_blocks.h"

namespace vit {
namespace VIT_ISA {

// Rows of a block, at most. A block's rows stay packed while panel after panel of the other side is
// packed and multiplied with them: more rows make the packing of panels cheaper (5 % of the time
// with 224), but every part of a block that a thread takes packs them again.
constexpr int64_t kMaxRows = 392;
// Nor more than this, unless rows are so long that few would be left.
constexpr int64_t kMaxRowBytes = 4 * 1024 * 1024;
constexpr int64_t kFewRows = 24;
// Fewer units than this make blocks of rows smaller, so that there is work for many threads.
constexpr int64_t kManyUnits = 12;
constexpr int64_t kMinRows = 48;

// Blocks of rows and of columns, of which each pair is a unit of work.
struct Blocks {
  Parts rows, vectors;

  // Columns in panels of whole vectors of `lanes`; packed rows take `row_bytes`.
  Blocks(int64_t row_count, int64_t row_bytes, int64_t column_count, int lanes)
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

template <class S>
struct EmbedForward {
  using T = Accumulator<S>;

  static Blocks blocks_of(const PatchCall& call) {
    return Blocks(patch_rows(call.shape), row_bytes<S>(call.shape.patch_elements()),
                  call.shape.features, kLanes<T>);
  }

  static int64_t units(const PatchCall& call) { return blocks_of(call).units(); }

  static int64_t scratch_bytes(const PatchCall& call) {
    const int64_t rows = blocks_of(call).most_rows();
    return Scratch::bytes<Number<S>>(rows * row_step<S>(call.shape.patch_elements())) +
           Scratch::bytes<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>) +
           Scratch::bytes<T>(rows * kMaxVectors * kLanes<T>);
  }

  static void run(const PatchCall& call, int64_t begin, int64_t end, void* memory) {
    const PatchShape& shape = call.shape;
    const Blocks blocks = blocks_of(call);
    const int64_t depth = shape.patch_elements(), features = shape.features;
    const S* kernel = static_cast<const S*>(call.kernel);
    Scratch scratch(memory);
    Number<S>* patches = scratch.take<Number<S>>(blocks.most_rows() * row_step<S>(depth));
    Element<S>* panel = scratch.take<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>);
    T* sums = scratch.take<T>(blocks.most_rows() * kMaxVectors * kLanes<T>);

    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit / blocks.vectors.count, part = unit % blocks.vectors.count;
      const int64_t row = blocks.rows.begin(block), rows = blocks.rows.size(block);
      if (packed != block) {
        pack_patches<S>(call, row, rows, 0, depth, patches);
        packed = block;
      }
      const int64_t column = blocks.vectors.begin(part) * kLanes<T>;
      const int vectors = static_cast<int>(blocks.vectors.size(part));
      const auto pack = [&](int64_t first, int64_t count, Element<S>* to) {
        pack_panel<S>(equal_rows(kernel + first * features, features), count, column, vectors,
                      kernel + depth * features, to);
      };
      multiply_panel<S>(rows, vectors, depth, patches, row_step<S>(depth), pack, panel, sums);
      write_tokens(call, row, rows, column, vectors, sums);
    }
  }

  // tokens = sums + bias + position.
  static void write_tokens(const PatchCall& call, int64_t row, int64_t rows, int64_t column,
                           int vectors, const T* sums) {
    const PatchShape& shape = call.shape;
    Vector<T> bias[kMaxVectors];
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = column + v * kLanes<T>;
      bias[v] = load_first(static_cast<const S*>(call.bias) + at, shape.features - at);
    }
    Rows<S> tokens = token_rows(shape, static_cast<S*>(call.tokens), row);
    Rows<const S> position{};
    if (call.position) position = table_rows(shape, static_cast<const S*>(call.position), row);
    for (int64_t i = 0; i < rows; ++i, tokens.next()) {
      for (int v = 0; v < vectors; ++v, sums += kLanes<T>) {
        const int64_t at = column + v * kLanes<T>, count = shape.features - at;
        Vector<T> added = bias[v];
        if (call.position) added += load_first(position.at + at, count);
        store_first(tokens.at + at, load(sums) + added, count);
      }
      if (call.position) position.next();
    }
  }
};

// The tokens before the patches; a unit is an image.
template <class S>
struct EmbedPrefix {
  using T = Accumulator<S>;

  static int64_t units(const PatchCall& call) { return call.shape.prefix ? call.shape.batch : 0; }

  static int64_t scratch_bytes(const PatchCall&) { return 0; }

  static void run(const PatchCall& call, int64_t begin, int64_t end, void*) {
    const int64_t count = call.shape.prefix * call.shape.features;
    const S* prefix = static_cast<const S*>(call.prefix);
    const S* position = static_cast<const S*>(call.position);
    for (int64_t b = begin; b < end; ++b) {
      S* to = static_cast<S*>(call.tokens) + b * call.shape.tokens() * call.shape.features;
      for (int64_t i = 0; i < count; i += kLanes<T>) {
        Vector<T> x = load_first(prefix + i, count - i);
        if (position) x += load_first(position + i, count - i);
        store_first(to + i, x, count - i);
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_FORWARD_H_
