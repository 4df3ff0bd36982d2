#include "custom_ops/cuda/attention/stream_geometry.h"

namespace vit {

int64_t section_bytes(int padded_head_size, int rows, int numbers) {
  return padded_head_size / 8 * 2 * (16 * rows + 16) + 4 * numbers * rows;
}

Divisor divisor_of(int64_t divisor) {
  int bits = 0;
  while (int64_t{1} << bits < divisor) ++bits;
  const int shift = 31 + bits;
  const auto multiplier = static_cast<uint32_t>((uint64_t{1} << shift) / divisor + 1);
  return {static_cast<uint32_t>(divisor), multiplier, shift};
}

StreamGeometry stream_geometry(const AttentionShape& shape, SectionCounts sections,
                               int64_t slot_bytes, int groups, int64_t bytes, int multiprocessors) {
  StreamGeometry g = {};
  const int64_t all = sections.first + sections.other, tiles = ceil_divide(shape.tokens, 64);
  // More than three lines ahead would only take longer to begin.
  int64_t slots = bytes / (slot_bytes + kSlotBarrierBytes);
  if (slots > 3 * all) slots = 3 * all;
  g.all_tiles = lines_of(shape) * tiles;
  if (slots < 2 || all > 0x7fffffff / 64) return g;
  g.sections[0] = static_cast<int>(sections.first);
  g.sections[1] = static_cast<int>(sections.other);
  g.slots = static_cast<int>(slots);
  g.slot_bytes = static_cast<int>(slot_bytes);
  g.tiles = static_cast<int>(tiles);
  g.tiles_per_pass = slots < all && groups < tiles ? groups : g.tiles;
  g.of_tiles = divisor_of(tiles);
  g.of_heads = divisor_of(shape.heads);
  g.of_lines = divisor_of(shape.lines);
  g.blocks = g.all_tiles < multiprocessors ? g.all_tiles : multiprocessors;
  return g;
}

}  // namespace vit
