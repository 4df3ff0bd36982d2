// The memory of an encoder between its layers.
#ifndef CUSTOM_OPS_CPU_ENCODER_ENCODER_BUFFERS_H_
#define CUSTOM_OPS_CPU_ENCODER_ENCODER_BUFFERS_H_

#include <algorithm>

#include "custom_ops/cpu/encoder/cpu_encoder.h"

namespace vit {

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The elements between rows: not a power of two, at which rows would share few sets of the caches.
inline int64_t padded(int64_t elements) { return round_up(elements, 32) + 32; }

// Whether `out` has no room for the tokens between blocks.
inline bool has_stream(const EncoderProblem& problem) {
  return problem.head || (problem.first_row_only && (problem.blocks > 1 || problem.images));
}

// Memory for all blocks, allocated at once.
class EncoderBuffers {
 public:
  EncoderBuffers(const EncoderProblem& problem, DType activation)
      : normal_stride(padded(problem.width)),
        hidden_stride(padded(problem.mlp_size)),
        patch_stride(problem.images ? padded(problem.images->shape.patch_elements()) : 0) {
    const int64_t rows = problem.batch * problem.tokens, size = size_of(activation);
    const int64_t sizes[kCount] = {rows * normal_stride * size,
                                   rows * 3 * problem.width * size,
                                   rows * problem.width * size,
                                   rows * std::max(hidden_stride, patch_stride) * size,
                                   2 * problem.batch * problem.heads * problem.tokens * 4,
                                   has_stream(problem) ? rows * problem.width * 4 : 0,
                                   problem.head ? problem.batch * problem.width * 4 : 0};
    for (int i = 0; i < kCount; ++i) {
      offsets_[i] = bytes;
      bytes += round_up(sizes[i], 64);
    }
  }

  void place(void* memory) {
    char* const at = static_cast<char*>(memory);
    normal = at + offsets_[0];
    qkv = at + offsets_[1];
    attended = at + offsets_[2];
    hidden = at + offsets_[3];
    statistics = at + offsets_[4];
    stream = reinterpret_cast<float*>(at + offsets_[5]);
    pooled = reinterpret_cast<float*>(at + offsets_[6]);
  }

  const int64_t normal_stride, hidden_stride, patch_stride;  // elements between rows
  int64_t bytes = 0;
  void *normal, *qkv, *attended, *hidden;  // activations; `hidden` first has the patches
  void* statistics;                        // of attention; not read
  float* stream;                           // of all tokens, if `out` has no room for them
  float* pooled;                           // [batch, width], of the head

 private:
  static constexpr int kCount = 7;
  int64_t offsets_[kCount];
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_ENCODER_BUFFERS_H_
