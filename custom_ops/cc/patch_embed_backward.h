// Gradients of the patch embedding but that of the kernel. With W the kernel and dY the gradient of
// the patch tokens, that of the rescaled patches is dY W^T.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_BACKWARD_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_BACKWARD_H_

#include "custom_ops/cc/patch_embed_forward.h"

namespace vit {
namespace VIT_ISA {

// The gradient of the images, where patches read them. A unit owns some elements of some patches.
template <class S>
struct ImageGradient {
  using T = Accumulator<S>;

  static Blocks blocks_of(const PatchCall& call) {
    return Blocks(patch_rows(call.shape), row_bytes<S>(call.shape.features),
                  call.shape.patch_elements(), kLanes<T>);
  }

  static int64_t units(const PatchCall& call) { return blocks_of(call).units(); }

  static int64_t scratch_bytes(const PatchCall& call) {
    const int64_t rows = blocks_of(call).most_rows();
    return Scratch::bytes<Number<S>>(rows * row_step<S>(call.shape.features)) +
           Scratch::bytes<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>) +
           Scratch::bytes<T>(rows * kMaxVectors * kLanes<T>);
  }

  static void run(const PatchCall& call, int64_t begin, int64_t end, void* memory) {
    const PatchShape& shape = call.shape;
    const Blocks blocks = blocks_of(call);
    const int64_t depth = shape.features, elements = shape.patch_elements();
    const S* kernel = static_cast<const S*>(call.kernel);
    Scratch scratch(memory);
    Number<S>* tokens = scratch.take<Number<S>>(blocks.most_rows() * row_step<S>(depth));
    Element<S>* panel = scratch.take<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>);
    T* sums = scratch.take<T>(blocks.most_rows() * kMaxVectors * kLanes<T>);

    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit / blocks.vectors.count, part = unit % blocks.vectors.count;
      const int64_t row = blocks.rows.begin(block), rows = blocks.rows.size(block);
      if (packed != block) {
        pack_tokens(call, row, rows, tokens);
        packed = block;
      }
      const int64_t column = blocks.vectors.begin(part) * kLanes<T>;
      const int vectors = static_cast<int>(blocks.vectors.size(part));
      const int64_t columns = vectors * kLanes<T>;
      const int64_t used = elements - column < columns ? elements - column : columns;
      const auto pack = [&](int64_t first, int64_t count, Element<S>* to) {
        pack_transposed(kernel + column * depth + first, depth, used, count, to, columns);
      };
      multiply_panel<S>(rows, vectors, depth, tokens, row_step<S>(depth), pack, panel, sums);
      unpack_patches(call, row, rows, column, column + used, sums, columns);
    }
  }

  static void pack_tokens(const PatchCall& call, int64_t row, int64_t rows, Number<S>* to) {
    const PatchShape& shape = call.shape;
    Rows<const S> from = token_rows(shape, static_cast<const S*>(call.d_tokens), row);
    for (int64_t i = 0; i < rows; ++i, from.next(), to += row_step<S>(shape.features)) {
      for (int64_t j = 0; j < shape.features; j += kLanes<T>) {
        put_numbers<S>(load_first(from.at + j, shape.features - j), to + j);
      }
    }
  }

  // `rows` rows of the kernel that lie `step` apart, `count` numbers of each, as columns; further
  // columns are 0.
  static void pack_transposed(const S* from, int64_t step, int64_t rows, int64_t count,
                              Element<S>* to, int64_t columns) {
    if constexpr (kNumbers<S> == 1) {
      pack_columns<S>(from, step, rows, count, to, columns);
    }
#if defined(__AVX512BF16__)
    if constexpr (kNumbers<S> == 2) {
      constexpr int kCount = kLanes<float>;  // of pairs
      for (int64_t i = 0; i < columns; i += kCount) {
        for (int64_t j = 0; j < count; j += 2 * kCount) {
          const int64_t rest = count - j;
          const __mmask32 mask = rest >= 32 ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
          Vector<float> block[kCount];
          for (int r = 0; r < kCount; ++r) {
            block[r] = i + r < rows ? (Vector<float>)_mm512_maskz_loadu_epi16(
                                          mask, from + (i + r) * step + j)
                                    : Vector<float>{};
          }
          transpose<float>(block);
          for (int r = 0; r < kCount && j + 2 * r < count; ++r) {
            _mm512_storeu_si512(to + (j / 2 + r) * columns + i, (__m512i)block[r]);
          }
        }
      }
    }
#endif
  }

  template <class I>
  static void unpack(const PatchCall& call, int64_t row, int64_t rows, int64_t column,
                     int64_t column_end, const T* sums, int64_t columns) {
    using Wide = decltype(Accumulator<I>{} + T{});
    I* images = static_cast<I*>(call.gradients.images);
    const Wide scale = static_cast<Wide>(call.scale);
    for_pixels(call.shape, row, rows, column, column_end,
               [=](int64_t pixel, int64_t at_row, int64_t at_column, int64_t count) {
                 const T* from = sums + (at_row - row) * columns + at_column - column;
                 I* to = images + pixel;
                 if constexpr (sizeof(Wide) == sizeof(float)) {
                   for (int64_t i = 0; i < count; i += kLanes<float>) {
                     store_first(to + i, load(from + i) * scale, count - i);
                   }
                 } else {
                   for (int64_t i = 0; i < count; ++i) {
                     const Wide x = static_cast<Wide>(from[i]) * scale;
                     convert_to(static_cast<Accumulator<I>>(x), to + i);
                   }
                 }
               });
  }

  // d_images = sums * scale.
  static void unpack_patches(const PatchCall& call, int64_t row, int64_t rows, int64_t column,
                             int64_t column_end, const T* sums, int64_t columns) {
    switch (call.image_type) {
      case DType::kBfloat16:
        return unpack<Bfloat16>(call, row, rows, column, column_end, sums, columns);
      case DType::kFloat16:
        return unpack<Float16>(call, row, rows, column, column_end, sums, columns);
      case DType::kFloat64:
        return unpack<double>(call, row, rows, column, column_end, sums, columns);
      case DType::kUint8:  // has no gradient
      case DType::kFloat32:
        return unpack<float>(call, row, rows, column, column_end, sums, columns);
    }
  }
};

// A sum of many vectors as a sum of sums of a few: fewer roundings follow one another.
template <class T>
class LongSum {
 public:
  VIT_INLINE void add(Vector<T> x) {
    part_ += x;
    if (++count_ % kRun) return;
    total_ += part_;
    part_ = Vector<T>{};
  }
  VIT_INLINE Vector<T> value() const { return total_ + part_; }

 private:
  static constexpr int64_t kRun = 16;
  Vector<T> total_ = {}, part_ = {};
  int64_t count_ = 0;
};

// The gradients of all that is added: bias, prefix, position. A unit owns some columns of them.
template <class S>
struct TableGradients {
  using T = Accumulator<S>;

  static constexpr int64_t kColumns = 128 / static_cast<int64_t>(sizeof(T));

  static int64_t units(const PatchCall& call) { return ceil_divide(call.shape.features, kColumns); }

  static int64_t scratch_bytes(const PatchCall&) { return 0; }

  static void run(const PatchCall& call, int64_t begin, int64_t end, void*) {
    const PatchShape& shape = call.shape;
    const PatchGradients& gradients = call.gradients;
    const int64_t features = shape.features, tokens = shape.tokens();
    const int64_t last = end * kColumns < features ? end * kColumns : features;
    for (int64_t column = begin * kColumns; column < last; column += kLanes<T>) {
      const S* d_tokens = static_cast<const S*>(call.d_tokens) + column;
      const int64_t count = features - column;
      const auto write = [=](void* table, int64_t row, Vector<T> sum) {
        if (table) store_first(static_cast<S*>(table) + row * features + column, sum, count);
      };
      LongSum<T> bias;
      for (int64_t token = 0; token < tokens; ++token) {
        LongSum<T> sum;
        for (int64_t b = 0; b < shape.batch; ++b) {
          sum.add(load_first(d_tokens + (b * tokens + token) * features, count));
        }
        write(gradients.position, token, sum.value());
        if (token < shape.prefix) {
          write(gradients.prefix, token, sum.value());
        } else {
          bias.add(sum.value());
        }
      }
      write(gradients.bias, 0, bias.value());
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_BACKWARD_H_
