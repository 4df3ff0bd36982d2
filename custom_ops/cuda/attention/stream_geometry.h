// How warpgroups divide lines of heads: plain numbers, which tests check without a GPU.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_STREAM_GEOMETRY_H_
#define CUSTOM_OPS_CUDA_ATTENTION_STREAM_GEOMETRY_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cuda/launch.h"

namespace vit {

// The number of lines over all heads.
inline int64_t lines_of(const AttentionShape& shape) {
  return shape.batch * shape.lines * shape.heads;
}

// Divides numbers below 2^31: n / divisor = n * multiplier / 2^shift (Granlund and Montgomery,
// 1994). A GPU has no instruction for divisions.
struct Divisor {
  uint32_t divisor, multiplier;
  int shift;
};
Divisor divisor_of(int64_t divisor);  // from 1 to 2^31 - 1

// The rows of sections of a line, multiples of 16: of the first ones, and of the others.
template <int first_rows, int other_rows>
struct SectionRows {
  static constexpr int first = first_rows, other = other_rows;
};
struct SectionCounts {
  int64_t first, other;
};

// How blocks of warpgroups take part in all lines: line_stream.h.
struct StreamGeometry {
  int sections[2];            // of a line: the first ones, and the others
  int slots, slot_bytes;      // of the ring in shared memory
  int tiles, tiles_per_pass;  // of a line
  int64_t all_tiles, blocks;
  Divisor of_tiles, of_heads, of_lines;
};

// What a section of two arrays of heads needs, with `numbers` floats for each row. The octets of a
// row lie 16 bytes for each row, and 16 more, apart.
int64_t section_bytes(int padded_head_size, int rows, int numbers);

// Two barriers of 8 bytes for each slot, before the slots.
constexpr int kSlotBarrierBytes = 16;
inline int64_t ring_bytes(const StreamGeometry& stream) {
  return int64_t{stream.slots} * (kSlotBarrierBytes + stream.slot_bytes);
}

// For blocks with `groups` warpgroups that multiply, and a GPU of so many multiprocessors. `bytes`:
// of shared memory for the ring. 0 slots: not even two sections fit.
StreamGeometry stream_geometry(const AttentionShape& shape, SectionCounts sections,
                               int64_t slot_bytes, int groups, int64_t bytes, int multiprocessors);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_STREAM_GEOMETRY_H_
