#include "custom_ops/cuda/stream_geometry.h"

namespace vit {

int64_t section_bytes(int padded_head_size, int rows, int numbers) {
  return padded_head_size / 8 * 2 * (16 * rows + 16) + 4 * numbers * rows;
}

StreamGeometry stream_geometry(const AttentionShape& shape, SectionCounts sections,
                               int64_t slot_bytes, int groups, int64_t bytes, int multiprocessors) {
  StreamGeometry g = {};
  const int64_t all = sections.first + sections.other, tiles = ceil_divide(shape.tokens, 64);
  // More than three lines ahead would only take longer to begin.
  int64_t slots = bytes / (slot_bytes + kSlotBarrierBytes);
  if (slots > 3 * all) slots = 3 * all;
  g.all_tiles = shape.batch * shape.lines * shape.heads * tiles;
  if (slots < 2 || all > 0x7fffffff / 64) return g;
  g.sections[0] = static_cast<int>(sections.first);
  g.sections[1] = static_cast<int>(sections.other);
  g.slots = static_cast<int>(slots);
  g.slot_bytes = static_cast<int>(slot_bytes);
  g.tiles = static_cast<int>(tiles);
  g.tiles_per_pass = slots < all && groups < tiles ? groups : g.tiles;
  g.blocks = g.all_tiles < multiprocessors ? g.all_tiles : multiprocessors;
  return g;
}

}  // namespace vit
