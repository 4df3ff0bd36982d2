// Attention forward with the products of warpgroups. A warpgroup takes 64 queries at a time, which
// it keeps in registers with their running softmax and their sums (Dao, 2023, FlashAttention-2);
// keys and values reach it as a stream (Shah et al., 2024, FlashAttention-3).
#ifndef CUSTOM_OPS_CUDA_ATTENTION_FORWARD_WARPGROUP_H_
#define CUSTOM_OPS_CUDA_ATTENTION_FORWARD_WARPGROUP_H_

#include "custom_ops/cuda/attention/scalar_logits.h"
#include "custom_ops/cuda/attention/line_stream.h"

namespace vit {

struct ForwardWarpgroupParameters {
  AttentionForwardProblem problem;
  KernelScales scales;
  StreamGeometry stream;  // not for short lines
  int64_t stride, width;  // elements of qkv between tokens, and between q, k and v
};

// 64 queries. A thread holds sums of the rows g and g + 8 of its warp, g = lane / 4.
template <class T, int kHead>
struct ForwardWarpgroup {
  // Weights are exp2((logit - shift) * factor). The shift follows the maximum only when a weight
  // would be larger than 2^kMostExponent: seldom, so sums and totals are seldom rescaled.
  static constexpr float kMostExponent = 8;

  WarpRows<T, kHead> queries;
  float sums[kHead / 8][4];
  uint32_t weights[ForwardRows::first / 16][4];  // of the keys [16 i, 16 i + 16)
  float maxima[2], shifts[2];
  float totals[2];  // until finish, of the keys of this thread

  VIT_DEVICE_METHOD void start(const Tile<T, 16, kHead>& tile, float factor) {
    queries.load(tile);
    if (factor != 1) queries.scale(factor);
#pragma unroll
    for (auto& of_columns : sums) of_columns[0] = of_columns[1] = of_columns[2] = of_columns[3] = 0;
    maxima[0] = maxima[1] = shifts[0] = shifts[1] = -infinity();
    totals[0] = totals[1] = 0;
  }

  // Computes the logits of 16 kPieces keys. The products of the keys before are done then. kIsOnly,
  // here and below: there are none, and no other keys.
  template <int kPieces, bool kIsOnly>
  VIT_DEVICE_METHOD void multiply_keys(const LineRows<T, kHead>& keys,
                                       float (&logits)[2 * kPieces][4]) {
    begin_products();
    start_row_products<kPieces>(queries, keys, logits);
    wait_for_products();
    pin(logits);
    if (!kIsOnly) pin(sums);
  }

  // Adds the values of 16 kPieces keys, of which `count` exist. The products still run when it
  // returns.
  template <int kPieces, bool kIsOnly>
  VIT_DEVICE_METHOD void add_values(const LineRows<T, kHead>& values, int count, bool has_rows,
                                    float factor, float (&logits)[2 * kPieces][4]) {
    if (kIsOnly || has_rows) weigh<kPieces, kIsOnly>(count, factor, logits);
    if (!kIsOnly) pin(sums);
    begin_products();
    start_weighted_rows<kPieces>(weights, values, sums, !kIsOnly);
  }

  // Computes the weights and adds them to the totals.
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
    bool is_stale = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float highest = kIsOnly ? -infinity() : maxima[i];
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        highest = fmaxf(highest, fmaxf(logits[n][2 * i], logits[n][2 * i + 1]));
      }
      highest = fmaxf(highest, shuffle_xor(highest, 1));
      maxima[i] = fmaxf(highest, shuffle_xor(highest, 2));
      is_stale |= (maxima[i] - shifts[i]) * factor > kMostExponent;
    }
    if constexpr (kIsOnly) {
      shifts[0] = maxima[0], shifts[1] = maxima[1];
    } else if (any_of_warp(is_stale)) {
      shift_to_maxima(factor);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // In a row of -inf only, 0 keeps the weights at 0 instead of NaN.
      const float shift = shifts[i] == -infinity() ? 0 : shifts[i];
      float total = kIsOnly ? 0 : totals[i];
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        const float low = fast_power_of_two((logits[n][2 * i] - shift) * factor);
        const float high = fast_power_of_two((logits[n][2 * i + 1] - shift) * factor);
        total += low + high;
        weights[n / 2][n % 2 * 2 + i] = packed<T>(low, high);
      }
      totals[i] = total;
    }
  }

  // The weight of the maximum, 1 for its own maximum.
  VIT_DEVICE_METHOD float weight_of_shift(int i, float factor) const {
    return shifts[i] == maxima[i] ? 1 : fast_power_of_two((shifts[i] - maxima[i]) * factor);
  }

  VIT_DEVICE_METHOD void shift_to_maxima(float factor) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float rescale = weight_of_shift(i, factor);
      shifts[i] = maxima[i];
      totals[i] *= rescale;
#pragma unroll
      for (auto& of_columns : sums) {
        of_columns[2 * i] *= rescale;
        of_columns[2 * i + 1] *= rescale;
      }
    }
  }

  // Adds the totals of the threads of a row, and writes the statistics and the output of the rows
  // that exist. `row`: of the warp.
  VIT_DEVICE_METHOD void finish(float* statistics, int64_t tokens, const KernelScales& scales,
                                const Rows<T>& to, T* out, int row) {
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = totals[i];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const int query = row + lane_index() / 4 + 8 * i;
      if (lane_index() % 4 == 0 && query < to.rows) {
        write_statistics(statistics, tokens, query, true, maxima[i] * scales.of_largest,
                         total * weight_of_shift(i, scales.of_exponents));
      }
      inverse[i] = 1 / total;
    }
    store_rows<T, kHead>(sums, inverse, to, out, row);
  }
};

// What both kernels know of the 64 queries from `token` on.
template <class T, int kHead>
struct QueryTile {
  using Stage = Tile<T, 16, kHead>;  // of a warp

  const ForwardWarpgroupParameters& p;
  int64_t index;  // of the line
  Line line;
  int64_t token;
  int row;  // of the warp in the tile

  VIT_DEVICE_METHOD QueryTile(const ForwardWarpgroupParameters& parameters, int64_t number,
                              const Line& of_tile, int tile)
      : p(parameters),
        index(number),
        line(of_tile),
        token(int64_t{tile} * kWarpgroupRows),
        row(warp_index() % 4 * 16) {}

  VIT_DEVICE_METHOD bool has_rows() const { return token + row < p.problem.shape.tokens; }
  // Starts to copy the queries of the warp.
  VIT_DEVICE_METHOD void copy(const Stage& stage) const {
    const Rows<T> rows =
        rows_of_qkv<T>(p.problem.shape, p.problem.qkv, line, kQuery, token, kWarpgroupRows, true);
    WarpRows<T, kHead>::start_copy(stage, rows, row);
  }
  VIT_DEVICE_METHOD void finish(ForwardWarpgroup<T, kHead>& group) const {
    const AttentionShape& shape = p.problem.shape;
    group.finish(statistics_of(p.problem.statistics, shape, index) + token, shape.tokens, p.scales,
                 rows_of_out<T>(shape, p.problem.out, line, token, kWarpgroupRows, true),
                 static_cast<T*>(p.problem.out) + offset_in_out(shape, line, token), row);
  }
};

template <class T>
VIT_DEVICE LineSource<T> keys_and_values(const ForwardWarpgroupParameters& p, const Line& line) {
  const AttentionShape& shape = p.problem.shape;
  const T* const keys = static_cast<const T*>(p.problem.qkv) + offset_in_qkv(shape, line, 0, kKey);
  return {{keys, keys + p.width},
          {p.stride, p.stride},
          static_cast<int>(shape.tokens),
          static_cast<int>(shape.head_size),
          {}};
}

// Lines of more than 64 tokens.
template <class T, int kHead>
VIT_KERNEL((kForwardGroups + 1) * kWarpgroup, 1, attention_forward_warpgroup,
           const ForwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    using Stage = typename QueryTile<T, kHead>::Stage;
    const LineStream<T, kHead, ForwardRows, 0, kForwardGroups> stream(p.stream);
    const auto copy = [&] {
      stream.copy([&](int64_t line) { return keys_and_values<T>(p, stream.line_at(line)); });
    };
    const auto multiply = [&](int number) {
      if (number >= stream.groups) return;
      // The next queries of the warp arrive here while it computes others.
      const Stage stage = {reinterpret_cast<T*>(stream.behind() + warp_index() * Stage::kBytes)};
      const auto copy_queries = [&](int index) {
        if (index >= stream.tiles) return;
        const auto at = stream.tile_at(index);
        QueryTile<T, kHead>(p, at.line, stream.line_at(at.line), at.tile).copy(stage);
      };
      int index = number;
      copy_queries(index);
      const int tokens = static_cast<int>(p.problem.shape.tokens);
      ForwardWarpgroup<T, kHead> group;
      stream.for_tiles(number, [&](int64_t line, int tile, const RingPlace& begin, bool is_last) {
        wait_for_copies<0>();
        group.start(stage, p.scales.of_queries);
        index += stream.groups;
        copy_queries(index);
        const QueryTile<T, kHead> queries(p, line, stream.line_at(line), tile);
        const bool has_rows = queries.has_rows();
        int before = -1;  // the slot of the section before, whose values are still in use
        stream.for_sections(begin, [&](auto rows, int first, const RingPlace& place) {
          constexpr int kRows = decltype(rows)::value;
          const auto section = stream.template get<kRows>(place);
          float logits[kRows / 8][4];
          group.template multiply_keys<kRows / 16, false>(section.rows[0], logits);
          if (is_last && before >= 0) stream.release(before);
          before = place.slot;
          group.template add_values<kRows / 16, false>(section.rows[1], tokens - first, has_rows,
                                                       p.scales.of_exponents, logits);
        });
        begin_products();  // The products before belong to either kind of section.
        wait_for_products();
        pin(group.sums);
        if (is_last) stream.release(before);
        queries.finish(group);
      });
    };
    divide_warpgroups<kForwardGroups>(copy, multiply);
  }
}

// Lines of up to 64 tokens: a block of one warpgroup for each.
template <class T, int kHead, int kBlocks>
VIT_KERNEL(kWarpgroup, kBlocks, attention_forward_short_warpgroup,
           const ForwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    const int tokens = static_cast<int>(p.problem.shape.tokens), rows = used_rows(tokens);
    const LineRows<T, kHead> keys = {shared_memory(), 16 * rows + 16};
    const LineRows<T, kHead> values = {keys.data + keys.kOctets * keys.pitch, keys.pitch};
    using Stage = typename QueryTile<T, kHead>::Stage;
    const Stage stage = {reinterpret_cast<T*>(values.data + keys.kOctets * keys.pitch +
                                              warp_index() * Stage::kBytes)};
    const Line line = line_of(p.problem.shape, block_index());
    const QueryTile<T, kHead> queries(p, block_index(), line, 0);
    queries.copy(stage);
    const LineSource<T> from = keys_and_values<T>(p, line);
    const LineCopy<T, kHead> copy = {{keys, values},
                                     {from.rows[0], from.rows[1]},
                                     {p.stride, p.stride},
                                     from.count,
                                     from.columns};
    copy.start(0, rows);
    commit_copies();
    ForwardWarpgroup<T, kHead> group;
    wait_for_copies<1>();
    group.start(stage, p.scales.of_queries);
    wait_for_copies<0>();
    publish_to_products();
    sync_block();
    for_pieces<4>(rows / 16, [&](auto pieces) {
      constexpr int kPieces = decltype(pieces)::value;
      float logits[2 * kPieces][4];
      group.template multiply_keys<kPieces, true>(keys, logits);
      group.template add_values<kPieces, true>(values, tokens, true, p.scales.of_exponents, logits);
      wait_for_products();
      pin(group.sums);
    });
    queries.finish(group);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_FORWARD_WARPGROUP_H_
