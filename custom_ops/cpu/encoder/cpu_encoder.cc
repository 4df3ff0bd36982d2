#include "custom_ops/cpu/encoder/cpu_encoder.h"

#include "custom_ops/cpu/attention/cpu_attention.h"
#include "custom_ops/cpu/dispatch.h"
#include "custom_ops/cpu/encoder/encoder_buffers.h"
#include "custom_ops/cpu/phases.h"

namespace vit {

namespace {

// The bytes of a row of a product, so that rows stay in the L2 cache.
constexpr int64_t kMostRowBytes = 4096;
// What follows fc1, by Activation.
constexpr Epilogue kEpilogues[] = {Epilogue::kGeluTanh, Epilogue::kGeluErf, Epilogue::kSwiglu};
// Images are independent of each other. More tokens than these are computed in slices of images,
// which bounds the memory: 230 MB for ViT-B/16 in float.
constexpr int64_t kMostRows = 8192;
// Parts of a depth are whole tiles of AMX.
constexpr int64_t kDepthUnit = 32;
// The bytes of the weights of the next layer that a layer prefetches.
constexpr int64_t kMostPrefetched = 128 * 1024;

// The numbers of `out` for one image.
int64_t out_size(const EncoderProblem& problem) {
  const bool is_row =
      problem.first_row_only || (problem.head && problem.head->pooling == Pooling::kMean);
  const bool has_classes = problem.head && problem.head->classes;
  return (is_row ? 1 : problem.tokens) * (has_classes ? problem.head->classes : problem.width);
}

int64_t image_bytes(const EncoderImages& images) {
  const PatchShape& shape = images.shape;
  return shape.height * shape.width * shape.channels * size_of(images.type);
}

// Rows of the residual stream, which the layers of a block read and then write.
struct Stream {
  int64_t rows;
  const float* from;
  int64_t stride;  // elements between rows that are read
  float* to;       // without gaps
};

// Lists the phases from the images or tokens to the output.
class EncoderPhases {
 public:
  EncoderPhases(const EncoderProblem& problem, const EncoderKernels& kernels,
                const EncoderBuffers& buffers, int64_t threads)
      : problem_(problem), kernels_(kernels), buffers_(buffers), threads_(threads) {
    const int64_t batch = problem.batch, width = problem.width;
    float* const stream = has_stream(problem) ? buffers.stream : problem.out;
    Stream all{batch * problem.tokens, problem.input, width, stream};
    if (problem.images) {
      embed(*problem.images, stream);
      all.from = stream;
    }
    for (int64_t i = 0; i < problem.blocks; ++i) {
      weights_ = static_cast<const char*>(problem.block[i].weights);
      biases_ = problem.block[i].biases;
      qk_norm_ = biases_ + encoder_biases_size(width, problem.mlp_size, problem.activation);
      following_ = i + 1 < problem.blocks ? problem.block[i + 1].weights : nullptr;
      normalize(all);
      if (problem.first_row_only && i + 1 == problem.blocks) {
        float* const rows = problem.head ? buffers.pooled : problem.out;
        attend_first_row();
        finish_block({batch, all.from, problem.tokens * width, rows});
        all = {batch, rows, width, rows};
      } else {
        attend();
        finish_block(all);
        all.from = stream;
      }
    }
    if (problem.head) classify(*problem.head, all);
  }

  Result run(const Execution& execution) { return phases_.run(execution); }

 private:
  DenseProblem new_dense(DType type, int64_t rows, int64_t depth, int64_t columns,
                         const void* weights, const float* bias) {
    DenseProblem dense{};
    dense.threads = threads_;
    dense.rows = rows;
    dense.depth = depth;
    dense.columns = columns;
    dense.weights = weights;
    dense.panel_size = packed_size(type, depth, kPanelColumns);
    dense.bias = bias;
    return dense;
  }

  // The next dense layer of the block. Its weights and biases follow the last layer's.
  DenseProblem next_dense(int64_t rows, int64_t depth, int64_t columns) {
    const DenseProblem dense = new_dense(problem_.type, rows, depth, columns, weights_, biases_);
    weights_ += packed_size(problem_.type, depth, columns) * size_of(problem_.type);
    biases_ += columns;
    return dense;
  }

  // Adds a layer of weights in the type of the blocks, after which those at `next` are read.
  void add(DenseProblem dense, const void* next) {
    dense.next_panel = next;
    dense.next_panel_bytes = kMostPrefetched;
    phases_.add(kernels_.dense, dense);
  }

  // The tokens of images, in the residual stream.
  void embed(const EncoderImages& images, float* stream) {
    const PatchShape& shape = images.shape;
    const int64_t width = problem_.width, prefix = shape.prefix * width;
    phases_.add(kernels_.patch_rows,
                PatchRowsProblem{images, buffers_.hidden, buffers_.patch_stride, stream});
    DenseProblem dense = new_dense(problem_.type, shape.batch * shape.patches(),
                                   shape.patch_elements(), width, images.kernel, images.bias);
    dense.period = shape.patches();
    dense.input = buffers_.hidden;
    dense.input_stride = buffers_.patch_stride;
    dense.output = stream + prefix;
    dense.output_stride = width;
    dense.output_gap = prefix;
    dense.epilogue = Epilogue::kFloat;
    if (images.position) {
      dense.epilogue = Epilogue::kResidual;
      dense.residual = images.position + prefix;
      dense.residual_stride = width;
      dense.residual_gap = -dense.period * width;
    }
    add(dense, problem_.block[0].weights);
  }

  // The final LayerNorm, pooling and dense layer. They are float.
  void classify(const EncoderHead& head, const Stream& stream) {
    const EncoderKernels floats =
        table_of_current_isa<EncoderKernels>(Isa::kAvx512, DType::kFloat32);
    const int64_t batch = problem_.batch, width = problem_.width;
    const bool is_mean = head.pooling == Pooling::kMean;
    // The queries, keys and values of the last block are not read any more.
    float* const rows = static_cast<float*>(buffers_.qkv);
    float* const normal = is_mean || head.classes ? rows : problem_.out;
    phases_.add(floats.layer_norm,
                LayerNormProblem{stream.rows, width, problem_.epsilon, stream.from, stream.stride,
                                 normal, width, head.scale, head.bias});
    float* const pooled = is_mean && head.classes ? buffers_.pooled : problem_.out;
    if (is_mean) {
      phases_.add(floats.mean, MeanProblem{batch, problem_.tokens, width, normal, pooled});
    }
    if (!head.classes) return;
    DenseProblem dense = new_dense(DType::kFloat32, is_mean ? batch : stream.rows, width,
                                   head.classes, head.kernel, head.kernel_bias);
    dense.input = is_mean ? pooled : normal;
    dense.input_stride = width;
    dense.output = problem_.out;
    dense.output_stride = head.classes;
    dense.epilogue = Epilogue::kFloat;
    phases_.add(floats.dense, dense);
  }

  void normalize(const Stream& stream) {
    phases_.add(kernels_.layer_norm, LayerNormProblem{stream.rows, problem_.width, problem_.epsilon,
                                                      stream.from, stream.stride, buffers_.normal,
                                                      buffers_.normal_stride, nullptr, nullptr});
  }

  // What happens to the heads of the block, in rows of the first tokens of each image.
  HeadTransform heads(int64_t tokens) const {
    return {problem_.heads,   problem_.width / problem_.heads,
            tokens,           problem_.tokens - problem_.rotary_tokens,
            problem_.epsilon, problem_.qk_norm ? qk_norm_ : nullptr,
            problem_.rotary};
  }

  bool transforms_heads() const { return problem_.qk_norm || problem_.rotary; }

  // Whether a panel has whole heads, which the epilogue of their projection transforms.
  bool has_whole_heads() const { return kPanelColumns % (problem_.width / problem_.heads) == 0; }

  // Transforms the heads [begin, end) of rows of the first tokens, if the epilogue has not.
  void transform(int64_t tokens, int64_t begin, int64_t end) {
    if (!transforms_heads() || has_whole_heads()) return;
    phases_.add(kernels_.head_rows,
                HeadRowsProblem{heads(tokens), problem_.batch * tokens, begin, end, buffers_.qkv,
                                3 * problem_.width * (problem_.tokens / tokens)});
  }

  DenseProblem qkv_dense(int64_t rows) {
    DenseProblem dense = next_dense(rows, problem_.width, 3 * problem_.width);
    dense.input = buffers_.normal;
    dense.input_stride = buffers_.normal_stride;
    dense.output = buffers_.qkv;
    dense.output_stride = 3 * problem_.width;
    const bool transforms = transforms_heads() && has_whole_heads();
    dense.epilogue = transforms ? Epilogue::kHeads : Epilogue::kBias;
    dense.heads = heads(problem_.tokens);
    return dense;
  }

  void attend() {
    const DenseProblem dense = qkv_dense(problem_.batch * problem_.tokens);
    add(dense, weights_);
    transform(problem_.tokens, 0, 2 * problem_.heads);
    const int64_t head_size = problem_.width / problem_.heads;
    AttentionForwardProblem attention{};
    attention.type = kernels_.activation;
    attention.shape = sequence_shape(problem_.batch, problem_.tokens, problem_.heads, head_size);
    attention.scale = default_attention_scale(head_size);
    attention.qkv = buffers_.qkv;
    attention.out = buffers_.attended;
    attention.statistics = buffers_.statistics;
    phases_.add(kernels_.attention, attention);
  }

  // If only token 0 is wanted: keys and values of all tokens, but queries of the first ones.
  void attend_first_row() {
    const int64_t batch = problem_.batch, tokens = problem_.tokens, width = problem_.width;
    DenseProblem all = qkv_dense(batch * tokens);
    DenseProblem first = all;
    all.first_panel = width / kPanelColumns;
    phases_.add(kernels_.dense, all);
    first.rows = batch;
    first.columns = width;
    first.input_stride *= tokens;
    first.output_stride *= tokens;
    first.heads.tokens = 1;
    add(first, weights_);
    transform(tokens, problem_.heads, 2 * problem_.heads);
    transform(1, 0, problem_.heads);
    const int64_t head_size = width / problem_.heads;
    phases_.add(kernels_.first_row, FirstRowProblem{batch, tokens, problem_.heads, head_size,
                                                    default_attention_scale(head_size),
                                                    buffers_.qkv, buffers_.attended});
  }

  // What follows attention: out, LayerNorm, fc1 and fc2.
  void finish_block(Stream stream) {
    const int64_t width = problem_.width, mlp_size = problem_.mlp_size;
    const DenseProblem out = next_dense(stream.rows, width, width);
    add_to_stream(out, buffers_.attended, width, weights_, stream);
    stream.from = stream.to;
    stream.stride = width;
    normalize(stream);
    DenseProblem dense = next_dense(stream.rows, width, fc1_columns(problem_.activation, mlp_size));
    dense.input = buffers_.normal;
    dense.input_stride = buffers_.normal_stride;
    dense.output = buffers_.hidden;
    dense.output_stride = buffers_.hidden_stride;
    dense.epilogue = kEpilogues[static_cast<int>(problem_.activation)];
    add(dense, weights_);
    add_to_stream(next_dense(stream.rows, mlp_size, width), buffers_.hidden, buffers_.hidden_stride,
                  following_, stream);
  }

  // Adds a layer to the residual stream, in parts of the depth: the rows of a large depth would not
  // stay in the L2 cache.
  void add_to_stream(DenseProblem dense, const void* input, int64_t input_stride, const void* next,
                     const Stream& stream) {
    dense.input = input;
    dense.input_stride = input_stride;
    dense.output = stream.to;
    dense.output_stride = problem_.width;
    dense.epilogue = Epilogue::kResidual;
    dense.residual = stream.from;
    dense.residual_stride = stream.stride;
    const int64_t depth = dense.depth, most = kMostRowBytes / size_of(kernels_.activation);
    const int64_t parts = (depth + most - 1) / most;
    const int64_t part = round_up((depth + parts - 1) / parts, kDepthUnit);
    const int64_t input_step = part * size_of(kernels_.activation);
    const int64_t weights_step = part * kPanelColumns * size_of(problem_.type);
    for (int64_t first = 0; first < depth; first += part) {
      dense.depth = depth - first < part ? depth - first : part;
      const char* const weights = static_cast<const char*>(dense.weights) + weights_step;
      add(dense, first + part < depth ? weights : next);
      dense.input = static_cast<const char*>(dense.input) + input_step;
      dense.weights = weights;
      dense.bias = nullptr;
      dense.residual = stream.to;
      dense.residual_stride = problem_.width;
    }
  }

  const EncoderProblem& problem_;
  const EncoderKernels& kernels_;
  const EncoderBuffers& buffers_;
  const int64_t threads_;
  Phases phases_;
  const char* weights_ = nullptr;     // of the next dense layer
  const void* following_ = nullptr;   // weights of the next block
  const float* biases_ = nullptr;
  const float* qk_norm_ = nullptr;    // of the block
};

}  // namespace

EncoderKernels encoder_kernels(const EncoderProblem& problem) {
  // Rows of bfloat16 activations start at whole pairs.
  const bool has_pairs = problem.type == DType::kBfloat16 && problem.width % 2 == 0;
  EncoderKernels kernels =
      table_of_current_isa<EncoderKernels>(has_pairs ? Isa::kAmx : Isa::kAvx512, problem.type);
  const int64_t head_size = problem.width / problem.heads;
  if (!kernels.attention.run || head_size % 2 != 0) {
    AttentionProblem attention{};
    attention.type = kernels.activation;
    attention.shape = sequence_shape(problem.batch, problem.tokens, problem.heads, head_size);
    kernels.attention = attention_forward_kernel(attention);
  }
  return kernels;
}

Result encoder(const EncoderProblem& problem, const Execution& execution) {
  if (problem.batch * problem.tokens == 0) return Result::kOk;
  const EncoderKernels kernels = encoder_kernels(problem);
  const int64_t most = problem.tokens < kMostRows ? kMostRows / problem.tokens : 1;
  const int64_t slices = (problem.batch + most - 1) / most;
  const int64_t image = problem.tokens * problem.width;
  EncoderProblem slice = problem;
  EncoderImages images{};
  if (problem.images) {
    images = *problem.images;
    slice.images = &images;
  }
  for (int64_t i = 0, first = 0; i < slices; ++i, first += slice.batch) {
    slice.batch = (problem.batch - first) / (slices - i);
    slice.out = problem.out + first * out_size(problem);
    if (problem.images) {
      images.shape.batch = slice.batch;
      images.images =
          static_cast<const char*>(problem.images->images) + first * image_bytes(*problem.images);
    } else {
      slice.input = problem.input + first * image;
    }
    const Result result = encoder_with(kernels, slice, execution);
    if (result != Result::kOk) return result;
  }
  return Result::kOk;
}

Result encoder_with(const EncoderKernels& kernels, const EncoderProblem& problem,
                    const Execution& execution) {
  EncoderBuffers buffers(problem, kernels.activation);
  void* const memory = execution.allocator.allocate(buffers.bytes);
  if (!memory) return Result::kOutOfMemory;
  buffers.place(memory);
  const int64_t threads = execution.parallel_for.threads;
  const Result result = EncoderPhases(problem, kernels, buffers, threads).run(execution);
  execution.allocator.release(memory);
  return result;
}

}  // namespace vit
