// Parts of attention that forward and backward share: where a line of a head lies, and blocks of it
// packed for the products of tile.h.
//
// Queries lie in the lanes of vectors and keys in rows: logits are blocks [keys, queries]. So maxima
// and sums over keys need no step across lanes, k and v are read one number at a time, and a number
// of keys that is no multiple of anything costs nothing.
#ifndef CUSTOM_OPS_CC_ATTENTION_BLOCKS_H_
#define CUSTOM_OPS_CC_ATTENTION_BLOCKS_H_

#include "custom_ops/cc/attention_isa.h"
#include "custom_ops/cc/tile.h"

namespace vit {
namespace VIT_ISA {

constexpr double kLog2E = 1.44269504088896340736;
constexpr double kLn2 = 0.693147180559945309417;

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

// Bytes of a block [keys, queries] of logits, at most: 128 keys for 64 queries in float, which was 2
// to 4 % faster than 96 (one thread of a Zen 5). Small, since it is written and read again at once.
constexpr int64_t kLogitsBytes = 32 * 1024;

// Queries of a block, at most.
template <class T>
constexpr int64_t kMaxQueries = kMaxVectors * kLanes<T>;
// Keys of a block, at most.
template <class T>
constexpr int64_t kMaxKeys = kLogitsBytes / (kMaxQueries<T> * static_cast<int64_t>(sizeof(T)));

// A range cut into nearly equal parts of at most `most`.
struct Parts {
  int64_t total, count;
  Parts(int64_t total, int64_t most) : total(total), count(ceil_divide(total, most)) {}
  int64_t begin(int64_t i) const { return total / count * i + (i < total % count ? i : total % count); }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

// Memory handed out from the front of a block, in pieces aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(void* memory) : next_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += bytes<T>(count);
    return piece;
  }
  // A vector more, because rows are written in whole vectors.
  template <class T>
  static int64_t bytes(int64_t count) {
    return round_up(count * static_cast<int64_t>(sizeof(T)) + VIT_VECTOR_BYTES, 64);
  }

 private:
  char* next_;
};

// One line of one head.
template <class S>
struct Line {
  int64_t batch, line, head;
  int64_t tokens, size;      // of the line, and of the head
  int64_t step, out_step;    // elements between tokens of qkv and of out
  int64_t offset, out_offset;  // of q of token 0 in qkv, and of token 0 in out
  int64_t width;             // heads * head_size: k follows q at this distance, and v follows k

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
  // Queries before those of this line and head.
  int64_t first_query(const AttentionShape& shape) const {
    return ((batch * shape.lines + line) * shape.heads + head) * tokens;
  }
};

// Asks for the memory of the next line a little at a time while this one is being computed: its
// pieces lie so far apart that the processor does not see them coming. Without it the forward pass
// of [8, 197, 3 * 768] takes a sixth longer (1 thread of a Zen 5).
class Ahead {
 public:
  // Nothing to ask for.
  Ahead() = default;

  // Rows of one token, one after the other. A line that would take more than its share of the second
  // cache is left alone.
  template <class S>
  explicit Ahead(const Line<S>& line)
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

  // Asks for one token.
  VIT_INLINE void ask() {
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

// Rows of `size` elements that lie `step` apart, as numbers in rows without gaps; writes up to a
// vector more.
template <class S, class T = Accumulator<S>>
static void pack_rows(const S* from, int64_t step, int64_t rows, int64_t size, T* to) {
  for (int64_t i = 0; i < rows; ++i, from += step, to += size) {
    int64_t j = 0;
    for (; j + kLanes<T> <= size; j += kLanes<T>) store<T>(to + j, load_converted(from + j));
    if (j < size) store<T>(to + j, load_first(from + j, size - j));
  }
}

// Up to here rows are read where they are. Beyond, the strides of a packed projection use the second
// cache badly: its sets repeat.
constexpr int64_t kMostTokensInPlace = 384;

// The rows `from` of a line as elements: themselves, or packed into `scratch`. Sets their distance.
template <class S, class E>
static const E* rows_of(const S* from, const Line<S>& line, E* scratch, int64_t& step) {
  constexpr int64_t kPer = kNumbersIn<E>;
  if constexpr (sizeof(E) == kPer * sizeof(S)) {
    const E* rows = reinterpret_cast<const E*>(from);
    step = line.step / kPer;
    if (line.tokens <= kMostTokensInPlace) return rows;
    pack_rows(rows, step, line.tokens, line.size / kPer, static_cast<Accumulator<E>*>(static_cast<void*>(scratch)));
  } else {
    pack_rows(from, line.step, line.tokens, line.size, scratch);
  }
  step = line.size / kPer;
  return scratch;
}

// The same rows as columns: to[j * columns + i] = from[i * step + j]; columns beyond `rows` are 0.
// `columns` is a multiple of kLanes.
template <class S, class T = Accumulator<S>>
static void pack_columns(const S* from, int64_t step, int64_t rows, int64_t size, T* to,
                         int64_t columns) {
  constexpr int kCount = kLanes<T>;
  for (int64_t i = 0; i < columns; i += kCount) {
    for (int64_t j = 0; j < size; j += kCount) {
      Vector<T> block[kCount];
      for (int r = 0; r < kCount; ++r) {
        block[r] = i + r < rows ? load_first(from + (i + r) * step + j, size - j) : Vector<T>{};
      }
      transpose<T>(block);
      for (int r = 0; r < kCount && j + r < size; ++r) store<T>(to + (j + r) * columns + i, block[r]);
    }
  }
}

// Rows of numbers as columns of elements, [size / kNumbersIn<E>, columns].
template <class E, class S>
static void pack_elements(const S* from, int64_t step, int64_t rows, int64_t size, E* to,
                          int64_t columns) {
  constexpr int64_t kPer = kNumbersIn<E>;
  if constexpr (kPer == 1) {
    pack_columns(from, step, rows, size, to, columns);
  } else {
    pack_columns(reinterpret_cast<const E*>(from), step / kPer, rows, size / kPer,
                 static_cast<float*>(static_cast<void*>(to)), columns);
  }
}

// Rows of numbers as rows of elements for the right side of a product, [rows / kNumbersIn<E>, padded]:
// the numbers of neighbouring rows make up an element, and `padded`, whole vectors, is filled with 0.
template <class E, class S>
static void pack_right(const S* from, int64_t step, int64_t rows, int64_t size, E* to,
                       int64_t padded) {
  if constexpr (kNumbersIn<E> == 1) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < padded; j += kLanes<E>) {
        store<E>(to + i * padded + j, load_first(from + i * step + j, size - j));
      }
    }
  } else {
    const Bfloat16 zero = {0};
    for (int64_t i = 0; i < rows; i += 2, from += 2 * step, to += padded) {
      const bool both = i + 1 < rows;
      int64_t j = 0;
#if defined(__AVX512BF16__)
      for (; j + 16 <= size; j += 16) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + j)));
        __m512i high = _mm512_setzero_si512();
        if (both) high = (__m512i)load_converted(from + step + j);
        _mm512_storeu_si512(to + j, _mm512_or_si512(low, high));
      }
#endif
      for (; j < size; ++j) to[j] = {from[j], both ? from[step + j] : zero};
      for (; j < padded; ++j) to[j] = {zero, zero};
    }
  }
}

// Zeros instead of row i of what pack_right has packed.
template <class E>
static void clear_right(E* to, int64_t padded, int64_t i) {
  to += i / kNumbersIn<E> * padded;
  for (int64_t j = 0; j < padded; ++j) {
    if constexpr (kNumbersIn<E> == 1) {
      to[j] = E{};
    } else {
      (i % 2 ? to[j].second : to[j].first) = Bfloat16{};
    }
  }
}

// Zeros in the columns of a block that are not open, whatever is there (it may be NaN).
template <class T>
static void clear_columns(T* to, int64_t columns, int64_t rows, Integers<T> open) {
  for (int64_t j = 0; j < rows; ++j) {
    store<T>(to + j * columns, open ? load(to + j * columns) : Vector<T>{});
  }
}

// The reverse: to[i * step + j] = from[j * columns + i] * factors[i / kLanes], for i < rows.
template <class S, class T = Accumulator<S>>
static void unpack_columns(const T* from, int64_t columns, const Vector<T>* factors, S* to,
                           int64_t step, int64_t rows, int64_t size) {
  constexpr int kCount = kLanes<T>;
  for (int64_t i = 0; i < rows; i += kCount) {
    const Vector<T> factor = factors[i / kCount];
    for (int64_t j = 0; j < size; j += kCount) {
      Vector<T> block[kCount];
      for (int r = 0; r < kCount; ++r) {
        block[r] = j + r < size ? load<T>(from + (j + r) * columns + i) * factor : Vector<T>{};
      }
      transpose<T>(block);
      for (int r = 0; r < kCount && i + r < rows; ++r) {
        store_first(to + (i + r) * step + j, block[r], size - j);
      }
    }
  }
}

// The bias of one line of one head.
template <class T>
struct LineBias {
  const T* data;  // of query 0 and key 0, or null
  int64_t query_stride, key_stride;

  LineBias(const AttentionBias& bias, int64_t batch, int64_t line, int64_t head)
      : data(static_cast<const T*>(bias.data)),
        query_stride(bias.query_stride),
        key_stride(bias.key_stride) {
    if (data) {
      data += batch * bias.batch_stride + line * bias.line_stride + head * bias.head_stride;
    }
  }

  // The block of `keys` x `queries` at (key, query), as [keys, columns]. Columns beyond `queries`
  // hold any numbers.
  void pack(int64_t key, int64_t keys, int64_t query, int64_t queries, T* to,
            int64_t columns) const {
    const T* from = data + query * query_stride + key * key_stride;
    if (query_stride == 0) {
      for (int64_t j = 0; j < keys; ++j) {
        const Vector<T> x = broadcast<T>(from[j * key_stride]);
        for (int64_t i = 0; i < columns; i += kLanes<T>) store<T>(to + j * columns + i, x);
      }
      return;
    }
    if (key_stride == 1) {
      pack_columns<T>(from, query_stride, queries, keys, to, columns);
      return;
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t i = 0; i < columns; ++i) {
        to[j * columns + i] = i < queries ? from[i * query_stride + j * key_stride] : T(0);
      }
    }
  }
};

// logits [keys, columns] = k q^T * scale + bias; sets the columns of `open` that have a bias other
// than -inf.
template <class T, int kVectors>
VIT_INLINE void add_bias(T* logits, const T* bias, int64_t keys, T scale,
                         Integers<T> (&open)[kVectors]) {
  const Vector<T> closed = broadcast<T>(-static_cast<T>(__builtin_inf()));
  const Vector<T> scales = broadcast<T>(scale);
  for (int64_t j = 0; j < keys; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = (j * kVectors + v) * kLanes<T>;
      const Vector<T> added = load(bias + at);
      open[v] |= added != closed;
      store<T>(logits + at, multiply_add<T>(load(logits + at), scales, added));
    }
  }
}

// The logits of `count` keys from `key` on and of the queries from `query` on, which are packed:
// [keys, columns]. Without a bias they stay products k q^T, with one they are k q^T * scale + bias.
// Returns what makes a difference of them one in units of log2: exp(logit - largest) is
// exp2((x - largest x) * factor), in which no rounding grows with the logits. Backward and taps
// compute them here as forward does, so that they get the same bits. `open`: see add_bias.
template <class E, int kVectors, class S, class T = Accumulator<S>>
static T compute_logits(const Line<S>& line, double scale, const LineBias<T>& bias, const E* keys,
                        int64_t key_step, const E* queries, int64_t key, int64_t count,
                        int64_t query, T* logits, T* packed_bias,
                        Integers<T> (&open)[kVectors]) {
  constexpr int64_t kColumns = kVectors * kLanes<T>;
  multiply<E>(count, kVectors, line.size / kNumbersIn<E>, keys + key * key_step, key_step, 1,
              queries, kColumns, logits, kColumns, false);
  if (!bias.data) return static_cast<T>(kLog2E * scale);
  const int64_t left = line.tokens - query;
  bias.pack(key, count, query, left < kColumns ? left : kColumns, packed_bias, kColumns);
  add_bias<T, kVectors>(logits, packed_bias, count, static_cast<T>(scale), open);
  return static_cast<T>(kLog2E);
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_BLOCKS_H_
