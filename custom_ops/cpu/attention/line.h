// The addresses of a line of a head, and of its rows.
#ifndef CUSTOM_OPS_CPU_ATTENTION_LINE_H_
#define CUSTOM_OPS_CPU_ATTENTION_LINE_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/pack.h"
#include "custom_ops/cpu/tile.h"

namespace vit {
namespace VIT_ISA {

// The number of lines, over all heads.
inline int64_t lines_of(const AttentionShape& shape) {
  return shape.batch * shape.lines * shape.heads;
}

// The approximate cycles of `products` matrix products over all pairs of tokens of a line, at 16
// multiplications and additions a cycle, plus a constant for every unit.
inline double line_cycles(const AttentionShape& shape, double products) {
  const double tokens = static_cast<double>(shape.tokens);
  return products * tokens * tokens * static_cast<double>(shape.head_size) / 16 + 500;
}

// With fewer lines than this, lines are split into groups of queries, so that a machine with as
// many cores is soon done at batch 1.
constexpr int64_t kManyLines = 32;

// The number of groups for `lines` lines of `vectors` vectors of queries. kManyLines cores take
// ceil(lines * groups / kManyLines) groups each, of up to ceil(vectors / groups) vectors. Few
// groups keep tiles wide and save sums, so this is the smallest number that takes at most a quarter
// longer than the best one.
inline int64_t group_count_of(int64_t lines, int64_t vectors, int64_t most) {
  if (lines == 0 || lines >= kManyLines) return 1;
  if (most > vectors) most = vectors;
  if (most > kManyLines) most = kManyLines;
  const auto time = [&](int64_t groups) {
    return ceil_divide(lines * groups, kManyLines) * ceil_divide(vectors, groups);
  };
  int64_t best = vectors;
  for (int64_t groups = 1; groups <= most; ++groups) {
    if (time(groups) < best) best = time(groups);
  }
  int64_t groups = 1;
  while (4 * time(groups) > 5 * best) ++groups;
  return groups;
}

// The queries of a line, in blocks of whole vectors of nearly equal size, and the blocks in groups.
template <class T>
struct QueryBlocks {
  Blocking vectors, groups;

  explicit QueryBlocks(const AttentionShape& shape, int64_t most_groups = kManyLines)
      : vectors(ceil_divide(shape.tokens, kLanes<T>), 1), groups(0, 1) {
    int64_t count = group_count_of(lines_of(shape), vectors.total, most_groups);
    if (count > vectors.total) count = vectors.total;
    // The same number of blocks in each group, so that groups take about the same time.
    const int64_t blocks = count ? ceil_divide(ceil_divide(vectors.total, count), kMaxVectors) : 0;
    vectors.count = count * blocks < vectors.total ? count * blocks : vectors.total;
    groups = Blocking(vectors.count, 1);
    groups.count = count;
  }
  // At least 1, also for a line without queries.
  int64_t group_count() const { return groups.count ? groups.count : 1; }
};

// A number of vectors of queries that is known to the compiler.
template <int kCount>
struct VectorCount {
  static constexpr int count = kCount;
};

// Calls function(VectorCount<vectors>()) for a block of 1 to kMaxVectors vectors.
template <class Function>
VIT_INLINE void with_vectors(int64_t vectors, const Function& function) {
  switch (vectors) {
    case 1:
      return function(VectorCount<1>());
    case 2:
      return function(VectorCount<2>());
#if defined(__AVX512F__)
    case 3:
      return function(VectorCount<3>());
    case 4:
      return function(VectorCount<4>());
#endif
  }
}

// One line of one head.
template <class S>
struct Line {
  int64_t batch, line, head;
  int64_t tokens, size;        // of the line, and of the head
  int64_t step, out_step;      // elements between tokens of qkv and of out
  int64_t offset, out_offset;  // of q of token 0 in qkv, and of token 0 in out
  int64_t width;  // heads * head_size: k follows q at this distance, and v follows k

  Line(const AttentionShape& shape, int64_t index) {
    head = index % shape.heads;
    line = index / shape.heads % shape.lines;
    batch = index / shape.heads / shape.lines;
    tokens = shape.tokens;
    size = shape.head_size;
    width = shape.heads * size;
    const int64_t position = batch * shape.batch_stride + line * shape.line_stride;
    step = 3 * width * shape.token_stride;
    out_step = width * shape.token_stride;
    offset = 3 * width * position + head * size;
    out_offset = width * position + head * size;
  }
  // The number of queries before the queries of this line and head.
  int64_t first_query(const AttentionShape& shape) const {
    return ((batch * shape.lines + line) * shape.heads + head) * tokens;
  }
};

// Prefetches the next line token by token while this line is being computed: the rows are too far
// apart for the hardware prefetcher. Without it the forward pass of [8, 197, 3 * 768] takes a sixth
// longer (1 thread of a Zen 5).
class Prefetcher {
 public:
  // A prefetcher that does nothing.
  Prefetcher() = default;

  // The rows of one token are prefetched one after the other. A line that is too large for the L2
  // cache is not prefetched.
  template <class S>
  explicit Prefetcher(const Line<S>& line)
      : bytes_(line.size * static_cast<int64_t>(sizeof(S))),
        left_(line.tokens * bytes_ <= kMostBytes ? line.tokens : 0) {}

  template <class S>
  void read(const S* row, int64_t step) {
    reads_[read_count_++] = {reinterpret_cast<const char*>(row), bytes(step, row)};
  }
  template <class S>
  void write(S* row, int64_t step) {
    writes_[write_count_++] = {reinterpret_cast<const char*>(row), bytes(step, row)};
  }

  // The rows of one token.
  VIT_INLINE void prefetch_token() {
    if (left_ <= 0) return;
    --left_;
    for (int i = 0; i < read_count_; ++i) {
      for (int64_t j = 0; j < bytes_; j += 64) __builtin_prefetch(reads_[i].next + j, 0, 2);
      reads_[i].next += reads_[i].step;
    }
    for (int i = 0; i < write_count_; ++i) {
      for (int64_t j = 0; j < bytes_; j += 64) __builtin_prefetch(writes_[i].next + j, 1, 2);
      writes_[i].next += writes_[i].step;
    }
  }

 private:
  static constexpr int64_t kMostBytes = 128 * 1024;
  struct Rows {
    const char* next;
    int64_t step;
  };
  template <class S>
  static int64_t bytes(int64_t step, S*) {
    return step * static_cast<int64_t>(sizeof(S));
  }
  Rows reads_[5], writes_[3];
  int read_count_ = 0, write_count_ = 0;
  int64_t bytes_ = 0, left_ = 0;
};

// Lines of up to this many tokens are read in place. Longer lines are packed, because at the
// strides of a packed projection their rows map to few sets of the L2 cache.
constexpr int64_t kMostTokensInPlace = 384;

// Returns the rows `from` of a line as elements, in place or packed into `scratch`. Sets `step`,
// the elements between rows.
template <class S, class E>
static const E* rows_of(const S* from, const Line<S>& line, E* scratch, int64_t& step) {
  constexpr int64_t kPack = kPackSize<E>;
  if constexpr (sizeof(E) == kPack * sizeof(S)) {
    const E* rows = reinterpret_cast<const E*>(from);
    step = line.step / kPack;
    if (line.tokens <= kMostTokensInPlace) return rows;
    pack_rows(rows, step, line.tokens, line.size / kPack,
              static_cast<Accumulator<E>*>(static_cast<void*>(scratch)));
  } else {
    pack_rows(from, line.step, line.tokens, line.size, scratch);
  }
  step = line.size / kPack;
  return scratch;
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_LINE_H_
