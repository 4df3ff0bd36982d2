// Attention forward with the products of warpgroups, for lines whose keys and values fit the shared
// memory of a block. A warpgroup takes 64 queries at a time, which it keeps in registers with their
// running softmax and their sums (Dao, 2023, FlashAttention-2).
#ifndef CUSTOM_OPS_CUDA_ATTENTION_FORWARD_WARPGROUP_H_
#define CUSTOM_OPS_CUDA_ATTENTION_FORWARD_WARPGROUP_H_

#include "custom_ops/cuda/attention/scalar_logits.h"
#include "custom_ops/cuda/warpgroup_tiles.h"

namespace vit {

struct ForwardWarpgroupParameters {
  AttentionForwardProblem problem;
  KernelScales scales;
  WarpgroupLines lines;
  int threads;  // of the block
  int64_t stride, width;  // elements of qkv between tokens, and between q, k and v
};

// 64 queries. A thread holds sums of the rows g and g + 8 of its warp, g = lane / 4.
template <class T, int kHead>
struct ForwardWarpgroup {
  WarpRows<T, kHead> queries;
  float sums[kHead / 8][4];
  uint32_t weights[kForwardBlocks.last / 16][4];  // of the keys [16 i, 16 i + 16)
  float maxima[2], totals[2];  // `totals` are those of the keys of this thread until finish

  VIT_DEVICE_METHOD void start(const Tile<T, 16, kHead>& tile, float factor) {
    queries.load(tile);
    if (factor != 1) queries.scale(factor);
#pragma unroll
    for (auto& of_columns : sums) of_columns[0] = of_columns[1] = of_columns[2] = of_columns[3] = 0;
    maxima[0] = maxima[1] = -infinity();
    totals[0] = totals[1] = 0;
  }

  // Adds 16 kPieces keys from `first` on, of which `count` exist. The products with their values
  // still run when it returns, unless there are no other keys (kIsOnly).
  template <int kPieces, bool kIsOnly>
  VIT_DEVICE_METHOD void add_keys(const LineRows<T, kHead>& keys, const LineRows<T, kHead>& values,
                                  int first, int count, bool has_rows, float factor) {
    float logits[2 * kPieces][4];
    begin_products();
    start_row_products<kPieces>(queries, keys, first, logits);
    wait_for_products();
    pin(logits);
    if (!kIsOnly) pin(sums);
    if (kIsOnly || has_rows) weigh<kPieces, kIsOnly>(count, factor, logits);
    if (!kIsOnly) pin(sums);
    begin_products();
    start_weighted_rows<kPieces>(weights, values, first, sums, !kIsOnly);
    if (kIsOnly) {
      wait_for_products();
      pin(sums);
    }
  }

  // Computes weights exp2((logit - maximum) * factor), and rescales totals and sums to the new
  // maxima (the running softmax).
  template <int kPieces, bool kIsOnly>
  VIT_DEVICE_METHOD void weigh(int count, float factor, float (&logits)[2 * kPieces][4]) {
    if (count < 16 * kPieces) {
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (8 * n + lane_index() % 4 * 2 + i % 2 >= count) logits[n][i] = -infinity();
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float highest = kIsOnly ? -infinity() : maxima[i];
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        highest = fmaxf(highest, fmaxf(logits[n][2 * i], logits[n][2 * i + 1]));
      }
      highest = fmaxf(highest, shuffle_xor(highest, 1));
      highest = fmaxf(highest, shuffle_xor(highest, 2));
      // In a row of -inf only, 0 keeps the weights at 0 instead of NaN.
      const float shift = highest == -infinity() ? 0 : highest;
      const float rescale = kIsOnly ? 0 : fast_power_of_two((maxima[i] - shift) * factor);
      maxima[i] = highest;
      float total = kIsOnly ? 0 : totals[i] * rescale;
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        const float low = fast_power_of_two((logits[n][2 * i] - shift) * factor);
        const float high = fast_power_of_two((logits[n][2 * i + 1] - shift) * factor);
        total += low + high;
        weights[n / 2][n % 2 * 2 + i] = packed<T>(low, high);
      }
      totals[i] = total;
      if constexpr (!kIsOnly) {
#pragma unroll
        for (auto& of_columns : sums) {
          of_columns[2 * i] *= rescale;
          of_columns[2 * i + 1] *= rescale;
        }
      }
    }
  }

  // Adds the totals of the threads of a row, and writes the statistics and the output of the rows
  // that exist. `row`: of the warp.
  VIT_DEVICE_METHOD void finish(float* statistics, int64_t tokens, float of_largest,
                                const Rows<T>& to, T* out, int row) {
    pin(sums);
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = totals[i];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const int query = row + lane_index() / 4 + 8 * i;
      if (lane_index() % 4 == 0 && query < to.rows) {
        write_statistics(statistics, tokens, query, true, maxima[i] * of_largest, total);
      }
      inverse[i] = 1 / total;
    }
    store_rows<T, kHead>(sums, inverse, to, out, row);
  }
};

// kIsShort: lines of up to 64 tokens.
template <class T, int kHead, bool kIsShort, int kThreads, int kBlocks>
VIT_KERNEL(kThreads, kBlocks, attention_forward_warpgroup, const ForwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    constexpr int kKeys = kForwardBlocks.block, kLastKeys = kForwardBlocks.last;
    const AttentionShape& shape = p.problem.shape;
    const auto block = static_cast<uint32_t>(block_index());
    const auto blocks = static_cast<uint32_t>(p.lines.blocks);
    const uint32_t index = block / blocks;
    const Line line = line_of(shape, index);
    const int first_tile = static_cast<int>(block % blocks) * p.lines.tiles_per_block;
    const int last_tile = smaller(first_tile + p.lines.tiles_per_block, p.lines.tiles);
    const int tokens = static_cast<int>(shape.tokens), rows = p.lines.rows;
    const LineRows<T, kHead> keys = {shared_memory(), 16 * rows + 16};
    const LineRows<T, kHead> values = {keys.data + keys.kOctets * keys.pitch, keys.pitch};
    const int row = warp_index() % 4 * 16;  // of the warp in the tile
    // The next queries of the warp arrive here while it computes others.
    const Tile<T, 16, kHead> stage = {reinterpret_cast<T*>(
        values.data + keys.kOctets * keys.pitch + warp_index() * Tile<T, 16, kHead>::kBytes)};
    const auto copy_queries = [&](int tile) {
      const Rows<T> rows_of_tile = rows_of_qkv<T>(
          shape, p.problem.qkv, line, kQuery, int64_t{tile} * kWarpgroupRows, kWarpgroupRows, true);
      WarpRows<T, kHead>::start_copy(stage, rows_of_tile, row);
    };

    int tile = first_tile + warp_index() / 4;
    copy_queries(tile);
    const T* const data =
        static_cast<const T*>(p.problem.qkv) + offset_in_qkv(shape, line, 0, kKey);
    const LineCopy<T, kHead> copy = {{keys, values},
                                     {data, data + p.width},
                                     {p.stride, p.stride},
                                     tokens,
                                     static_cast<int>(shape.head_size),
                                     p.threads};
    // Blocks of keys before the last one. The first tile starts with those that have arrived.
    const int whole = kIsShort ? 0 : (rows - kLastKeys) / kKeys;
    for (int i = 0; i < whole; ++i) {
      copy.start(i * kKeys, (i + 1) * kKeys);
      commit_copies();
    }
    copy.start(whole * kKeys, rows);
    commit_copies();
    ForwardWarpgroup<T, kHead> group;
    bool is_first = true;
    do {
      const int64_t token = int64_t{tile} * kWarpgroupRows;
      const bool has_rows = row < tokens - static_cast<int>(token);
      wait_for_all_copies_but(is_first ? whole + 1 : 0);
      group.start(stage, p.scales.of_queries);
      const int next = tile + p.threads / kWarpgroup;
      const auto add = [&](auto pieces, int i) {
        if (is_first) {
          wait_for_all_copies_but(whole - i);
          publish_to_products();
          sync_block();
        }
        group.template add_keys<decltype(pieces)::value, kIsShort>(
            keys, values, i * kKeys, tokens - i * kKeys, has_rows, p.scales.of_exponents);
      };
      if constexpr (kIsShort) {
        for_pieces<4>(rows / 16, [&](auto pieces) { add(pieces, 0); });
      } else {
#pragma unroll 1
        for (int i = 0; i < whole; ++i) add(Pieces<kKeys / 16>{}, i);
        add(Pieces<kLastKeys / 16>{}, whole);
      }
      is_first = false;
      if constexpr (!kIsShort) {
        wait_for_products();
        if (next < last_tile) copy_queries(next);
      }
      group.finish(statistics_of(p.problem.statistics, shape, index) + token, shape.tokens,
                   p.scales.of_largest,
                   rows_of_out<T>(shape, p.problem.out, line, token, kWarpgroupRows, true),
                   static_cast<T*>(p.problem.out) + offset_in_out(shape, line, token), row);
      tile = next;
    } while (tile < last_tile);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_FORWARD_WARPGROUP_H_
