// Lines of heads on their way from the memory of the GPU to the warpgroups of a block. The last
// warpgroup of the block copies sections of lines to a ring of slots in shared memory; the others
// multiply with the sections and own 64 tokens (a tile) at a time.
//
// A block takes neighboring tiles of all lines, and gives them to its warpgroups in turn. It copies
// a line once for all of its tiles, or, if the ring has fewer slots than the line sections, once
// for a tile of each warpgroup: a pass.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_LINE_STREAM_H_
#define CUSTOM_OPS_CUDA_ATTENTION_LINE_STREAM_H_

#include "custom_ops/cuda/attention/line.h"
#include "custom_ops/cuda/attention/stream_geometry.h"
#include "custom_ops/cuda/warpgroup_tiles.h"

namespace vit {

// Two arrays of rows in the memory of the GPU, and three numbers for each row.
template <class T>
struct LineSource {
  const T* rows[2];
  int64_t stride[2];
  int count, columns;  // that exist; zeros take the place of the others
  const float* numbers[3];  // for kNumbers = 3
};

VIT_DEVICE uint32_t quotient(uint32_t number, const Divisor& divisor) {
  return static_cast<uint32_t>(uint64_t{number} * divisor.multiplier >> divisor.shift);
}

// A section of a line in shared memory.
template <class T, int kHead>
struct Section {
  LineRows<T, kHead> rows[2];
  float* numbers;  // [3, rows]
};

// Where a warp is in the ring.
struct RingPlace {
  int slot = 0, phase = 0;

  VIT_DEVICE_METHOD void advance(int sections, int slots) {
    slot += sections;
    while (slot >= slots) slot -= slots, phase ^= 1;
  }
};

// Rows: SectionRows.
template <class T, int kHead, class Rows, int kNumbers, int kGroups>
struct LineStream {
  const StreamGeometry& shape;
  int64_t line = 0;  // of the first tile
  int tile = 0, tiles = 0;  // of the block: the first one in its line, and their number
  int groups = 0;  // that have tiles
  char* slots = nullptr;

  VIT_DEVICE_METHOD explicit LineStream(const StreamGeometry& geometry) : shape(geometry) {
    const int64_t first = block_index() * shape.all_tiles / shape.blocks;
    tiles = static_cast<int>((block_index() + 1) * shape.all_tiles / shape.blocks - first);
    line = first / shape.tiles;
    tile = static_cast<int>(first - line * shape.tiles);
    groups = smaller(tiles, kGroups);
    slots = shared_memory() + shape.slots * kSlotBarrierBytes;
    if (thread_index() == 0) {
      for (int slot = 0; slot < shape.slots; ++slot) {
        full(slot).init(kWarpgroup);
        empty(slot).init(groups * kWarpgroup / kWarp);
      }
    }
    sync_block();
  }

  VIT_DEVICE_METHOD char* behind() const { return slots + shape.slots * shape.slot_bytes; }
  VIT_DEVICE_METHOD SharedBarrier full(int slot) const {
    return {shared_memory() + slot * kSlotBarrierBytes};
  }
  VIT_DEVICE_METHOD SharedBarrier empty(int slot) const {
    return {shared_memory() + slot * kSlotBarrierBytes + SharedBarrier::kBytes};
  }

  template <int kSectionRows>
  VIT_DEVICE_METHOD Section<T, kHead> section(int slot) const {
    constexpr int kPitch = 16 * kSectionRows + 16, kOctets = kHead / 8;
    char* const data = slots + slot * shape.slot_bytes;
    return {{{data, kPitch}, {data + kOctets * kPitch, kPitch}},
            reinterpret_cast<float*>(data + 2 * kOctets * kPitch)};
  }

  // Calls `body(rows, first, place)` for the sections of a line: the rows, as a constant, the first
  // row, and the place in the ring.
  template <class Body>
  VIT_DEVICE_METHOD void for_sections(RingPlace place, const Body& body) const {
    int first = 0;
#pragma unroll 1
    for (int i = 0; i < shape.sections[0]; ++i) {
      body(Constant<Rows::first>{}, first, place);
      first += Rows::first;
      place.advance(1, shape.slots);
    }
#pragma unroll 1
    for (int i = 0; i < shape.sections[1]; ++i) {
      body(Constant<Rows::other>{}, first, place);
      first += Rows::other;
      place.advance(1, shape.slots);
    }
  }

  // Calls `body(line, tile, count, place)` for the passes of the block: `count` tiles from number
  // `tile` of the line on.
  template <class Body>
  VIT_DEVICE_METHOD void for_passes(const Body& body) const {
    RingPlace place;
    int64_t line_of_pass = line;
    int at = tile;
#pragma unroll 1
    for (int left = tiles; left > 0;) {
      const int count = smaller(smaller(shape.tiles_per_pass, shape.tiles - at), left);
      body(line_of_pass, at, count, place);
      place.advance(shape.sections[0] + shape.sections[1], shape.slots);
      left -= count;
      at += count;
      if (at == shape.tiles) at = 0, ++line_of_pass;
    }
  }

  // Copies all sections. The last warpgroup of the block calls it. `source(line)` is a LineSource.
  template <class Source>
  VIT_DEVICE_METHOD void copy(const Source& source) const {
    int before = -1;  // the slot of the section before, whose copies may still run
    // Announces it once all copies are done, except the copies of `left` sections.
    const auto announce = [&](auto left) {
      if (before < 0) return;
      wait_for_copies<decltype(left)::value>();
      publish_to_products();
      full(before).arrive();
      before = -1;
    };
    for_passes([&](int64_t line_of_pass, int, int, const RingPlace& begin) {
      const LineSource<T> from = source(line_of_pass);
      for_sections(begin, [&](auto rows, int first, const RingPlace& place) {
        // The warpgroups may need it to empty the slot.
        if (!empty(place.slot).has_ended(place.phase ^ 1)) announce(Constant<0>{});
        empty(place.slot).wait(place.phase ^ 1);
        constexpr int kCount = decltype(rows)::value;
        const Section<T, kHead> to = section<kCount>(place.slot);
        const LineCopy<T, kHead> copy = {{to.rows[0], to.rows[1]},
                                         {from.rows[0], from.rows[1]},
                                         {from.stride[0], from.stride[1]},
                                         from.count,
                                         from.columns};
        copy.start(first, kCount);
#pragma unroll
        for (int k = 0; k < kNumbers; ++k) {
          for (int i = thread_index() % kWarpgroup; i < kCount; i += kWarpgroup) {
            const bool valid = first + i < from.count;
            copy_word_async(to.numbers + k * kCount + i, from.numbers[k] + (valid ? first + i : 0),
                            valid);
          }
        }
        commit_copies();
        announce(Constant<1>{});
        before = place.slot;
      });
    });
    announce(Constant<0>{});
  }

  // Calls `body(line, tile, place, is_last)` for the tiles of warpgroup `group`, of `groups`. The
  // last one of a pass must release the sections.
  template <class Body>
  VIT_DEVICE_METHOD void for_tiles(int group, const Body& body) const {
    int own = group;  // the next tile of the warpgroup, from the first of the pass on
    for_passes([&](int64_t line_of_pass, int at, int count, const RingPlace& place) {
      if (own >= count) {
        for_sections(place, [&](auto, int, const RingPlace& unused) {
          full(unused.slot).wait(unused.phase);
          release(unused.slot);
        });
      }
#pragma unroll 1
      for (; own < count; own += groups) body(line_of_pass, at + own, place, own + groups >= count);
      own -= count;
    });
  }

  // The tile number `index` of the block, if it exists: index < tiles.
  struct TilePlace {
    int64_t line;
    int tile;
  };
  VIT_DEVICE_METHOD TilePlace tile_at(int index) const {
    const uint32_t lines = quotient(static_cast<uint32_t>(tile + index), shape.of_tiles);
    return {line + lines, tile + index - static_cast<int>(lines) * shape.tiles};
  }
  // As line_of.
  VIT_DEVICE_METHOD Line line_at(int64_t index) const {
    const auto at = static_cast<uint32_t>(index);
    const uint32_t of_heads = quotient(at, shape.of_heads);
    const uint32_t batch = quotient(of_heads, shape.of_lines);
    return {batch, of_heads - batch * shape.of_lines.divisor,
            at - of_heads * shape.of_heads.divisor};
  }

  // Waits for a section.
  template <int kSectionRows>
  VIT_DEVICE_METHOD Section<T, kHead> get(const RingPlace& place) const {
    full(place.slot).wait(place.phase);
    return section<kSectionRows>(place.slot);
  }
  // This warp does not use the section any more.
  VIT_DEVICE_METHOD void release(int slot) const {
    if (lane_index() == 0) empty(slot).arrive();
  }
};

// Runs `copy` in the last warpgroup of a block and `multiply` in the kGroups others, with the
// registers that each needs.
template <int kGroups, class Copy, class Multiply>
VIT_DEVICE void divide_warpgroups(const Copy& copy, const Multiply& multiply) {
  static_assert(kGroups == 2 || kGroups == 3);
  if (warp_index() / 4 == kGroups) {
    release_registers<kGroups == 2 ? 40 : 32>();
    copy();
  } else {
    claim_registers<kGroups == 2 ? 232 : 160>();
    multiply(warp_index() / 4);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_LINE_STREAM_H_
