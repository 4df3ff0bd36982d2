#include "custom_ops/cpu/encoder/encoder.h"

#include <string.h>

#include "custom_ops/cpu/attention/attention.h"
#include "custom_ops/cpu/dispatch.h"
#include "custom_ops/cpu/encoder/kernels.h"

namespace vit {

namespace {

EncoderKernels kernels(const EncoderProblem& problem) {
  // Rows of bfloat16 activations start at whole pairs.
  const bool has_pairs = problem.type == DType::kBfloat16 && problem.width % 2 == 0;
  return table_of_current_isa<EncoderKernels>(has_pairs ? Isa::kAmx : Isa::kAvx512, problem.type);
}

// Rows of this many more elements than needed: at a stride of a power of two, rows would share few
// sets of the caches. A whole number of cache lines.
constexpr int64_t kRowPadding = 32;

int64_t padded_row(int64_t elements) { return (elements + 31) / 32 * 32 + kRowPadding; }

// The depth of a product whose rows stay in the L2 cache.
constexpr int64_t kMostDepth = 1024;

// Memory for all blocks, in one piece.
class Buffers {
 public:
  Buffers(const EncoderProblem& problem, DType activation) {
    const int64_t rows = problem.batch * problem.tokens, size = size_of(activation);
    normal_stride = padded_row(problem.width);
    hidden_stride = padded_row(problem.mlp_size);
    const int64_t sizes[] = {
        rows * normal_stride * size,
        rows * 3 * problem.width * size,
        rows * problem.width * size,
        rows * hidden_stride * size,
        2 * problem.batch * problem.heads * problem.tokens * 4,
        // The last block then writes to `out` only what is left of the stream.
        problem.first_row_only ? rows * problem.width * 4 : 0,
    };
    for (int i = 0; i < 6; ++i) {
      offsets_[i] = bytes;
      bytes += (sizes[i] + 63) / 64 * 64;
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
  }

  int64_t bytes = 0;
  int64_t normal_stride, hidden_stride;  // in elements
  void *normal, *qkv, *attended, *hidden, *statistics;  // activations, and float statistics
  float* stream;  // of all tokens, if `out` holds only the first ones

 private:
  int64_t offsets_[6];
};

// One run over all blocks. Every step is a kernel; after a failure nothing more is computed.
class Encoder {
 public:
  Encoder(const EncoderProblem& problem, const Execution& execution, const EncoderKernels& kernels,
          const Buffers& buffers)
      : problem_(problem), execution_(execution), kernels_(kernels), buffers_(buffers) {}

  Result run() {
    const int64_t rows = problem_.batch * problem_.tokens, width = problem_.width;
    float* const stream = problem_.first_row_only ? buffers_.stream : problem_.out;
    memcpy(stream, problem_.input, static_cast<size_t>(rows * width) * sizeof(float));
    for (int64_t i = 0; i < problem_.blocks; ++i) {
      start_block(problem_.block[i]);
      normalize({rows, width, problem_.epsilon, stream, width});
      if (problem_.first_row_only && i + 1 == problem_.blocks) {
        finish_first_row(stream);
      } else {
        dense(rows, 3 * width, width, buffers_.normal, buffers_.normal_stride, buffers_.qkv,
              3 * width, Epilogue::kBias);
        attend();
        finish_block(rows, stream);
      }
    }
    return result_;
  }

 private:
  void start_block(const EncoderBlock& block) {
    weights_ = static_cast<const char*>(block.weights);
    biases_ = block.biases;
  }

  // Runs the next dense layer of the block, whose weights and biases follow the last one's.
  void dense(int64_t rows, int64_t columns, int64_t depth, const void* input, int64_t input_stride,
             void* output, int64_t output_stride, Epilogue epilogue) {
    DenseProblem problem = next_dense(rows, columns, depth, input, input_stride, output,
                                      output_stride, epilogue);
    // The rows of a large depth would not stay in the cache. Sums that are added to the output
    // anyway can be computed in parts.
    const int64_t parts = epilogue == Epilogue::kResidual ? (depth + kMostDepth - 1) / kMostDepth : 1;
    const int64_t part = ((depth + parts - 1) / parts + 31) / 32 * 32;
    for (int64_t first = 0; first < depth; first += part) {
      problem.depth = depth - first < part ? depth - first : part;
      run_kernel(kernels_.dense, problem);
      problem.input = static_cast<const char*>(problem.input) + part * size_of(kernels_.activation);
      problem.weights =
          static_cast<const char*>(problem.weights) + part * kPanelColumns * size_of(problem_.type);
      problem.bias = nullptr;
    }
  }

  DenseProblem next_dense(int64_t rows, int64_t columns, int64_t depth, const void* input,
                          int64_t input_stride, void* output, int64_t output_stride,
                          Epilogue epilogue) {
    const DenseProblem problem{rows, depth, columns, 0, weights_,
                               packed_size(problem_.type, depth, kPanelColumns), biases_, input,
                               input_stride, output, output_stride, epilogue};
    weights_ += packed_size(problem_.type, depth, columns) * size_of(problem_.type);
    biases_ += columns;
    return problem;
  }

  void normalize(LayerNormProblem norm) {
    norm.output = buffers_.normal;
    norm.output_stride = buffers_.normal_stride;
    run_kernel(kernels_.layer_norm, norm);
  }

  void attend() {
    if (result_ != Result::kOk) return;
    const int64_t head_size = problem_.width / problem_.heads;
    AttentionForwardProblem attention{};
    attention.type = kernels_.activation;
    attention.shape = sequence_shape(problem_.batch, problem_.tokens, problem_.heads, head_size);
    attention.scale = default_attention_scale(head_size);
    attention.qkv = buffers_.qkv;
    attention.out = buffers_.attended;
    attention.statistics = buffers_.statistics;
    result_ = attention_forward(attention, execution_);
  }

  // What follows attention, for `rows` rows of the stream: out, LayerNorm, fc1 and fc2.
  void finish_block(int64_t rows, float* stream) {
    const int64_t width = problem_.width;
    dense(rows, width, width, buffers_.attended, width, stream, width, Epilogue::kResidual);
    normalize({rows, width, problem_.epsilon, stream, width});
    dense(rows, problem_.mlp_size, width, buffers_.normal, buffers_.normal_stride, buffers_.hidden,
          buffers_.hidden_stride,
          problem_.activation == Activation::kGeluTanh ? Epilogue::kGeluTanh : Epilogue::kGeluErf);
    dense(rows, width, problem_.mlp_size, buffers_.hidden, buffers_.hidden_stride, stream, width,
          Epilogue::kResidual);
  }

  // The rest of the last block if only token 0 is wanted: keys and values of all tokens, everything
  // else of the first ones.
  void finish_first_row(const float* stream) {
    const int64_t batch = problem_.batch, width = problem_.width, tokens = problem_.tokens;
    const int64_t head_size = width / problem_.heads;
    DenseProblem first = next_dense(batch, 3 * width, width, buffers_.normal, buffers_.normal_stride,
                                    buffers_.qkv, 3 * width, Epilogue::kBias);
    DenseProblem all = first;
    all.rows = batch * tokens;
    all.first_panel = width / kPanelColumns;
    run_kernel(kernels_.dense, all);
    first.columns = width;
    first.input_stride *= tokens;
    first.output_stride *= tokens;
    run_kernel(kernels_.dense, first);
    run_kernel(kernels_.first_row,
               FirstRowProblem{batch, tokens, problem_.heads, head_size,
                               default_attention_scale(head_size), buffers_.qkv,
                               buffers_.attended});
    for (int64_t b = 0; b < batch; ++b) {
      memcpy(problem_.out + b * width, stream + b * tokens * width,
             static_cast<size_t>(width) * sizeof(float));
    }
    finish_block(batch, problem_.out);
  }

  template <class Problem>
  void run_kernel(const Kernel<Problem>& kernel, const Problem& problem) {
    if (result_ == Result::kOk) result_ = vit::run_kernel(kernel, problem, execution_);
  }

  const EncoderProblem& problem_;
  const Execution& execution_;
  const EncoderKernels& kernels_;
  const Buffers& buffers_;
  Result result_ = Result::kOk;
  const char* weights_ = nullptr;  // of the next dense layer
  const float* biases_ = nullptr;
};

}  // namespace

Result encoder(const EncoderProblem& problem, const Execution& execution) {
  if (problem.batch * problem.tokens == 0) return Result::kOk;
  const EncoderKernels table = kernels(problem);
  Buffers buffers(problem, table.activation);
  void* const memory = execution.allocator.allocate(buffers.bytes);
  if (!memory) return Result::kOutOfMemory;
  buffers.place(memory);
  const Result result = Encoder(problem, execution, table, buffers).run();
  execution.allocator.release(memory);
  return result;
}

}  // namespace vit
