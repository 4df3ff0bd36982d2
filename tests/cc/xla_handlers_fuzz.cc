// libFuzzer on the FFI handlers of custom_ops/xla, which check buffers and attributes again before
// the kernels use them. This program takes XLA's place: it collects the handlers and calls them.
// The launchers of the handlers for GPUs are replaced by functions that run on the CPU. A call
// whose parts fit must succeed. After a change of some part it may succeed or fail, but must
// neither crash nor touch memory outside of the buffers.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cpu/attention/cpu_attention.h"
#include "custom_ops/cpu/encoder/cpu_encoder.h"
#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"
#include "custom_ops/cuda/cuda_attention.h"
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "tests/cc/fuzz.h"
#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  std::string message;
};

namespace {

using namespace vit_test;

// By the name of the op and the platform.
std::map<std::pair<std::string, std::string>, XLA_FFI_Handler*>& handlers() {
  static std::map<std::pair<std::string, std::string>, XLA_FFI_Handler*> found;
  return found;
}

XLA_FFI_Error* register_handler(XLA_FFI_Handler_Register_Args* args) {
  const std::string name(args->name.ptr, args->name.len);
  // TensorFlow's library registers its own handlers too.
  const std::string platform(args->platform.ptr, args->platform.len);
  if (name.rfind("Vit", 0) == 0) handlers()[{name, platform}] = args->bundle.execute;
  return nullptr;
}

XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->message};
}

void get_message(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = args->error->message.c_str();
}

void destroy_error(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

XLA_FFI_Error* num_threads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  *args->num_threads = 1;
  return nullptr;
}

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = &handlers();  // any address
  return nullptr;
}

struct Buffer {
  XLA_FFI_DataType type;
  std::vector<int64_t> dims;
};

struct Attribute {
  std::string name;
  XLA_FFI_AttrType kind;
  XLA_FFI_DataType type;
  std::vector<int64_t> numbers;  // of a scalar or an array
  std::string text;
};

struct Call {
  std::string op;
  std::vector<Buffer> arguments, results;
  std::vector<Attribute> attributes;
  bool is_refused = false;
};

int64_t bytes_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_S64:
      return 8;
    case XLA_FFI_DataType_F32:
      return 4;
    case XLA_FFI_DataType_U8:
      return 1;
    default:
      return 2;
  }
}

constexpr XLA_FFI_DataType kTypes[] = {XLA_FFI_DataType_F32, XLA_FFI_DataType_BF16,
                                       XLA_FFI_DataType_F16, XLA_FFI_DataType_F64,
                                       XLA_FFI_DataType_U8,  XLA_FFI_DataType_S64};

// The names of kTypes, as attributes hold them.
std::string name_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F32:
      return "float32";
    case XLA_FFI_DataType_BF16:
      return "bfloat16";
    case XLA_FFI_DataType_F16:
      return "float16";
    case XLA_FFI_DataType_F64:
      return "float64";
    default:
      return "uint8";
  }
}

Attribute text(const char* name, std::string value) {
  return {name, XLA_FFI_AttrType_STRING, {}, {}, std::move(value)};
}

Attribute number(const char* name, int64_t value) {
  return {name, XLA_FFI_AttrType_SCALAR, XLA_FFI_DataType_S64, {value}, ""};
}

Attribute list(const char* name, XLA_FFI_DataType type, std::vector<int64_t> values) {
  return {name, XLA_FFI_AttrType_ARRAY, type, std::move(values), ""};
}

constexpr int64_t kOne = 0x3f800000;  // the bits of 1 in float

Call attention_call(Input& input, const std::string& op) {
  const XLA_FFI_DataType type = kTypes[input.pick(0, 3)];
  const auto sums = type == XLA_FFI_DataType_F64 ? type : XLA_FFI_DataType_F32;
  const bool has_taps = op == "VitAttentionTaps";
  const int64_t axis = has_taps ? 0 : input.pick(0, 2), heads = input.pick(1, 3);
  const int64_t batch = input.pick(0, 2), rows = input.pick(0, 9), columns = input.pick(0, 5);
  const int64_t width = heads * input.pick(1, 5);
  std::vector<int64_t> out, statistics, logits;
  if (axis) {
    const int64_t count = axis == 1 ? rows : columns, lines = axis == 1 ? columns : rows;
    out = {batch, rows, columns, width};
    statistics = {batch, lines, heads, 2, count};
    logits = {batch, lines, heads, count, count};
  } else {
    out = {batch, rows, width};
    statistics = {batch, heads, 2, rows};
    logits = {batch, heads, rows, rows};
  }
  std::vector<int64_t> qkv = out;
  qkv.back() *= 3;
  Call call = {op, {{type, qkv}}, {}, {}};
  const bool has_bias = op == "VitAttentionBiasGrad" || input.pick(0, 1);
  if (has_bias) {
    const int64_t kept = input.pick(0, static_cast<int64_t>(logits.size()));
    logits.erase(logits.begin(), logits.end() - kept);
    for (int64_t& n : logits) n = input.pick(0, 1) ? n : 1;
    call.arguments.push_back({sums, logits});
  }
  if (op == "VitAttention") {
    call.results = {{type, out}, {sums, statistics}};
  } else if (has_taps) {
    call.arguments.push_back({sums, statistics});
    call.results = {{sums, {batch, heads, rows}}, {sums, {batch, heads}}, {sums, {0}}};
    call.attributes = {text("taps", "class_row,distance"), number("grid_rows", 1),
                       number("grid_columns", std::max<int64_t>(rows, 1))};
    if (rows == 0) call.attributes[0].text = "class_row";
    if (rows == 0) call.results[1].dims = {0};
  } else {
    for (const Buffer& own : {Buffer{type, out}, {sums, statistics}, {type, out}}) {
      call.arguments.push_back(own);
    }
    call.results = {call.arguments[op == "VitAttentionBiasGrad"]};
  }
  for (const Attribute& attribute :
       {number("num_heads", heads), number("axis", axis), text("T", name_of(type)),
        text("Tacc", name_of(sums)), text("Tbias", has_bias ? name_of(sums) : ""),
        list("scale", XLA_FFI_DataType_S32, std::vector<int64_t>(input.pick(0, 1), kOne))}) {
    call.attributes.push_back(attribute);
  }
  return call;
}

Call encoder_call(Input& input, bool has_rotary) {
  const bool is_float = input.pick(0, 1), first_row_only = input.pick(0, 1);
  const XLA_FFI_DataType type = is_float ? XLA_FFI_DataType_F32 : XLA_FFI_DataType_BF16;
  const auto dtype = is_float ? vit::DType::kFloat32 : vit::DType::kBfloat16;
  const int64_t heads = input.pick(1, 3),
                size = has_rotary ? 2 * input.pick(1, 4) : input.pick(1, 9);
  const int64_t width = heads * size;
  const int64_t mlp_size = input.pick(1, 70), blocks = input.pick(1, 3);
  constexpr const char* kActivations[] = {"gelu_tanh", "gelu_erf", "swiglu"};
  const auto activation = static_cast<vit::Activation>(input.pick(0, 2));
  const bool qk_norm = input.pick(0, 1);
  const int64_t biases_size = vit::encoder_biases_size(width, mlp_size, activation) +
                              (qk_norm ? vit::qk_norm_size(size) : 0);
  const int64_t batch = input.pick(0, 2), tokens = input.pick(first_row_only, 9);
  Call call = {has_rotary ? "VitRotaryEncoder" : "VitEncoder",
               {{XLA_FFI_DataType_F32, {batch, tokens, width}}},
               {{XLA_FFI_DataType_F32, {batch, first_row_only ? 1 : tokens, width}}},
               {}};
  const Buffer weights = {type, {vit::encoder_weights_size(dtype, width, mlp_size, activation)}};
  const Buffer biases = {XLA_FFI_DataType_F32, {biases_size}};
  for (const Buffer& buffer : {weights, biases}) {
    call.arguments.insert(call.arguments.end(), static_cast<size_t>(blocks), buffer);
  }
  if (has_rotary) {
    call.arguments.push_back({XLA_FFI_DataType_F32, {input.pick(0, tokens), 2, size / 2}});
  }
  call.attributes = {text("T", name_of(type)),
                     number("blocks", blocks),
                     number("num_heads", heads),
                     number("mlp_size", mlp_size),
                     number("first_row_only", first_row_only),
                     number("layout", vit::kEncoderLayout),
                     list("epsilon", XLA_FFI_DataType_S32, {kOne}),
                     text("activation", kActivations[static_cast<int>(activation)]),
                     number("qk_norm", qk_norm)};
  return call;
}

Call model_call(Input& input, bool has_rotary) {
  Call call = encoder_call(input, has_rotary);
  std::vector<Buffer> blocks(call.arguments.begin() + 1, call.arguments.end());
  Buffer rotary = blocks.back();  // if there is one
  if (has_rotary) blocks.pop_back();
  const int64_t batch = call.arguments[0].dims[0], width = call.arguments[0].dims[2];
  const XLA_FFI_DataType type = blocks[0].type, kFloat = XLA_FFI_DataType_F32;
  const auto dtype = type == kFloat ? vit::DType::kFloat32 : vit::DType::kBfloat16;
  const int64_t size = input.pick(1, 4), rows = input.pick(1, 3), columns = input.pick(1, 3);
  const int64_t channels = input.pick(1, 3), prefix = input.pick(0, 2);
  const int64_t tokens = prefix + rows * columns, classes = input.pick(0, 9);
  const bool has_position = input.pick(0, 1), has_head = classes > 0;
  const char* const poolings[] = {"none", "token", "mean"};
  const int64_t pooling = input.pick(0, 2);
  const Buffer images = {kTypes[input.pick(0, 1) ? 4 : 0],
                         {batch, rows * size + input.pick(0, size - 1), columns * size, channels}};
  call.op = has_rotary ? "VitRotaryModel" : "VitModel";
  call.arguments = {
      images, {type, {vit::packed_size(dtype, size * size * channels, width)}}, {kFloat, {width}}};
  if (prefix) call.arguments.push_back({kFloat, {prefix, width}});
  if (has_position) call.arguments.push_back({kFloat, {tokens, width}});
  call.arguments.insert(call.arguments.end(), blocks.begin(), blocks.end());
  call.arguments.insert(call.arguments.end(), 2, {kFloat, {width}});
  if (has_head) {
    call.arguments.push_back({kFloat, {vit::packed_size(vit::DType::kFloat32, width, classes)}});
    call.arguments.push_back({kFloat, {classes}});
  }
  if (has_rotary) {
    rotary.dims[0] = input.pick(0, tokens);
    call.arguments.push_back(rotary);
  }
  const int64_t out = has_head ? classes : width;
  call.results = {{kFloat, pooling ? std::vector<int64_t>{batch, out}
                                   : std::vector<int64_t>{batch, tokens, out}}};
  for (const Attribute& attribute :
       {text("I", name_of(images.type)), text("pooling", poolings[pooling]),
        number("patch_size", size), number("num_prefix", prefix > 0),
        number("num_position", has_position), number("num_head", has_head),
        list("scale", XLA_FFI_DataType_S32, {kOne}),
        list("offset", XLA_FFI_DataType_S32, {kOne})}) {
    call.attributes.push_back(attribute);
  }
  return call;
}

Call row_call(Input& input, const std::string& op) {
  Call call{op, {}, {}, {}};
  const XLA_FFI_DataType type = kTypes[input.pick(0, 2)], kFloat = XLA_FFI_DataType_F32;
  const int64_t width = input.pick(1, 40);
  const Buffer rows = {type, {input.pick(0, 3), input.pick(1, 20), width}},
               columns = {type, {width}};
  const Buffer floats = {kFloat, {width}};
  Buffer statistics = {kFloat, rows.dims};
  statistics.dims.back() = 2;
  const bool has_branch = input.pick(0, 1);
  call.attributes = {text("T", name_of(type))};
  if (op == "VitBiasGelu" || op == "VitBiasGeluGrad") {
    call.arguments = {rows, columns};
    call.results = {rows};
    if (op == "VitBiasGeluGrad") {
      call.arguments.push_back(rows);
      call.results.push_back(columns);
    }
    call.attributes.push_back(number("exact", input.pick(0, 1)));
  } else if (op == "VitResidualNorm") {
    call.arguments = {rows, floats, floats};
    call.results = {rows, statistics};
    if (has_branch) {
      call.arguments.push_back(rows);
      call.results.push_back(rows);
    }
    call.attributes.push_back(number("num_branch", has_branch));
    call.attributes.push_back(list("epsilon", XLA_FFI_DataType_S32, {kOne}));
  } else if (op == "VitResidualNormGrad") {
    call.arguments = {rows, statistics, floats, rows};
    if (has_branch) call.arguments.push_back(rows);
    call.results = {rows, floats, floats};
    call.attributes.push_back(number("num_sum", has_branch));
  } else {
    const bool is_adamw = op == "VitAdamwUpdate";
    const XLA_FFI_DataType momentum_type = kTypes[input.pick(0, 1)];
    const Buffer weight = {kFloat, rows.dims}, momentum = {momentum_type, rows.dims};
    call.arguments = {weight, weight, {kFloat, {is_adamw ? 4 : 2}}, momentum};
    call.results = {weight, momentum};
    call.attributes = {text("M", name_of(momentum_type))};
    std::vector<const char*> names = {"weight_decay", "momentum_decay"};
    if (is_adamw) {
      call.arguments.push_back(weight);
      call.results.push_back(weight);
      names = {"weight_decay", "beta_1", "beta_2", "epsilon"};
    }
    for (const char* name : names) {
      call.attributes.push_back(list(name, XLA_FFI_DataType_S32, {kOne}));
    }
  }
  return call;
}

Call patch_call(Input& input, const std::string& op) {
  const XLA_FFI_DataType type = kTypes[input.pick(0, 3)];
  const bool images_grad = op == "VitPatchEmbedImagesGrad";
  const XLA_FFI_DataType pixels = kTypes[input.pick(0, 4)];
  const int64_t batch = input.pick(0, 2), height = input.pick(0, 9), width = input.pick(0, 9);
  const int64_t channels = input.pick(0, 3), size = input.pick(1, 4), features = input.pick(0, 20);
  const int64_t patches = (height / size) * (width / size);
  const Buffer images = {pixels, {batch, height, width, channels}};
  const Buffer cut = {pixels, {batch, patches, size * size * channels}};
  const Attribute patch_size = number("patch_size", size);
  const Attribute copied = text("T", name_of(pixels));
  if (op == "VitExtractPatches") return {op, {images}, {cut}, {patch_size, copied}};
  if (op == "VitExtractPatchesGrad") {
    const Attribute shape = list("constant", XLA_FFI_DataType_S64, images.dims);
    return {op, {cut, {XLA_FFI_DataType_S64, {4}}}, {images}, {patch_size, copied, shape}};
  }
  const bool has_prefix = input.pick(0, 1), has_position = input.pick(0, 1);
  const int64_t prefix = has_prefix ? input.pick(0, 2) : 0;
  const Buffer kernel = {type, {size, size, channels, features}};
  const Buffer tokens = {type, {batch, prefix + patches, features}};
  std::vector<Buffer> tables;
  if (has_prefix) tables.push_back({type, {prefix, features}});
  if (has_position) tables.push_back({type, {prefix + patches, features}});
  Call call = {op, {}, {}, {text("T", name_of(type))}};
  if (op == "VitPatchEmbed" || op == "VitPatchEmbedTablesGrad") {
    call.attributes.push_back(number("num_prefix", has_prefix));
    call.attributes.push_back(number("num_position", has_position));
  }
  const Buffer bias = {type, {features}};
  if (op == "VitPatchEmbedTablesGrad") {
    call.arguments = {tokens};
    call.results = {bias};
    call.results.insert(call.results.end(), tables.begin(), tables.end());
  } else {
    for (const char* name : {"scale", "offset"}) {
      call.attributes.push_back(list(name, XLA_FFI_DataType_S32, {kOne}));
    }
    call.attributes.push_back(text("I", name_of(pixels)));
    if (op == "VitPatchEmbed") {
      call.arguments = {images, kernel, bias};
      call.results = {tokens};
    } else {
      call.arguments = {images_grad ? images : kernel, images_grad ? kernel : images, tokens};
      call.results = {call.arguments[0]};
      call.is_refused = images_grad && pixels == XLA_FFI_DataType_U8;  // it has no gradient
      return call;
    }
  }
  call.arguments.insert(call.arguments.end(), tables.begin(), tables.end());
  return call;
}

// Integers that checks tend to forget, and others.
int64_t odd_number(Input& input) {
  const int64_t odd[] = {-1, 0, 1, 2, int64_t{1} << 31, int64_t{1} << 62, INT64_MIN, INT64_MAX};
  const int64_t i = input.pick(0, 15);
  return i < 8 ? odd[i] : i - 8;
}

void change(Input& input, Call& call) {
  std::vector<Buffer>& buffers = input.pick(0, 2) ? call.arguments : call.results;
  const auto some = [&](size_t count) {
    return static_cast<size_t>(input.pick(0, static_cast<int64_t>(count) - 1));
  };
  switch (input.pick(0, 6)) {
    case 0:
      if (!buffers.empty()) buffers[some(buffers.size())].type = kTypes[input.pick(0, 5)];
      break;
    case 1:
      if (!buffers.empty())
        buffers.erase(buffers.begin() + static_cast<int64_t>(some(buffers.size())));
      break;
    case 2:
      buffers.push_back({kTypes[input.pick(0, 5)], {input.pick(0, 3)}});
      break;
    case 3:
    case 4:
      if (!buffers.empty()) {
        std::vector<int64_t>& dims = buffers[some(buffers.size())].dims;
        if (input.pick(0, 3) == 0) {
          dims.push_back(odd_number(input));
        } else if (!dims.empty() && input.pick(0, 3) == 0) {
          dims.pop_back();
        } else if (!dims.empty()) {
          dims[some(dims.size())] = odd_number(input);
        }
      }
      break;
    case 5:
      if (!call.attributes.empty()) {
        call.attributes.erase(call.attributes.begin() +
                              static_cast<int64_t>(some(call.attributes.size())));
      }
      break;
    default:
      if (!call.attributes.empty()) {
        Attribute& attribute = call.attributes[some(call.attributes.size())];
        if (attribute.kind == XLA_FFI_AttrType_SCALAR) attribute.numbers = {odd_number(input)};
        if (attribute.kind == XLA_FFI_AttrType_ARRAY)
          attribute.numbers.push_back(odd_number(input));
        if (attribute.kind == XLA_FFI_AttrType_STRING) attribute.text += ",entropy";
      }
  }
}

// Memory that ends where the buffer ends. Returns false if that is more than a fuzzer should use.
// A buffer with negative dimensions gets no memory, because nothing may read it.
bool allocate(const Buffer& buffer, std::unique_ptr<char[]>* memory) {
  double bytes = static_cast<double>(bytes_of(buffer.type));
  for (int64_t n : buffer.dims) bytes *= static_cast<double>(std::max<int64_t>(n, 0));
  if (bytes > 1 << 20) return false;
  const auto count = static_cast<size_t>(bytes);
  memory->reset(new char[count]);
  // As a float of any type, a small positive number.
  std::fill_n(memory->get(), count, static_cast<char>(60));
  return true;
}

class Frame {
 public:
  // Returns false if the buffers cannot be allocated.
  bool fill(const Call& call) {
    for (const bool is_result : {false, true}) {
      for (const Buffer& buffer : is_result ? call.results : call.arguments) {
        if (!allocate(buffer, &memory_.emplace_back())) return false;
        dims_.push_back(std::make_unique<std::vector<int64_t>>(buffer.dims));
        buffers_.push_back(std::make_unique<XLA_FFI_Buffer>(
            XLA_FFI_Buffer{XLA_FFI_Buffer_STRUCT_SIZE, nullptr, buffer.type, memory_.back().get(),
                           static_cast<int64_t>(buffer.dims.size()), dims_.back()->data()}));
        (is_result ? results_ : arguments_).push_back(buffers_.back().get());
      }
    }
    std::vector<Attribute> sorted = call.attributes;  // by name, as in XLA
    std::sort(sorted.begin(), sorted.end(),
              [](const Attribute& a, const Attribute& b) { return a.name < b.name; });
    for (const Attribute& attribute : sorted) add(attribute);
    return true;
  }

  XLA_FFI_Error* run(const XLA_FFI_Api* api, XLA_FFI_Handler* handler) {
    std::vector<XLA_FFI_ArgType> argument_types(arguments_.size(), XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> result_types(results_.size(), XLA_FFI_RetType_BUFFER);
    XLA_FFI_CallFrame frame = {};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = api;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(arguments_.size()),
                  argument_types.data(), arguments_.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(results_.size()),
                  result_types.data(), results_.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                   nullptr,
                   static_cast<int64_t>(kinds_.size()),
                   kinds_.data(),
                   names_.data(),
                   values_.data()};
    return handler(&frame);
  }

 private:
  template <class T>
  T* keep(T value) {
    kept_.push_back(std::make_shared<T>(std::move(value)));
    return static_cast<T*>(kept_.back().get());
  }

  void add(const Attribute& attribute) {
    const auto* name = keep(attribute.name);
    names_.push_back(keep(XLA_FFI_ByteSpan{name->data(), name->size()}));
    kinds_.push_back(attribute.kind);
    if (attribute.kind == XLA_FFI_AttrType_STRING) {
      const auto* text = keep(attribute.text);
      values_.push_back(keep(XLA_FFI_ByteSpan{text->data(), text->size()}));
      return;
    }
    const bool is_wide = attribute.type == XLA_FFI_DataType_S64;
    auto* wide = keep(attribute.numbers);
    auto* narrow = keep(std::vector<int32_t>());
    for (int64_t n : *wide) narrow->push_back(static_cast<int32_t>(n));
    void* data = is_wide ? static_cast<void*>(wide->data()) : narrow->data();
    if (attribute.kind == XLA_FFI_AttrType_SCALAR) {
      values_.push_back(keep(XLA_FFI_Scalar{attribute.type, data}));
    } else {
      values_.push_back(keep(XLA_FFI_Array{attribute.type, wide->size(), data}));
    }
  }

  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> dims_;
  std::vector<std::unique_ptr<XLA_FFI_Buffer>> buffers_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<void*> arguments_, results_, values_;
  std::vector<XLA_FFI_AttrType> kinds_;
  std::vector<XLA_FFI_ByteSpan*> names_;
};

}  // namespace

namespace vit {

template <class Problem>
CudaResult on_cpu(Result (*run)(const Problem&, const Execution&), const Problem& problem,
                  const CudaExecution& execution) {
  if (execution.stream != &handlers()) abort();
  return run(problem, {serial(), heap()}) == Result::kOk ? CudaResult::kOk
                                                         : CudaResult::kOutOfMemory;
}

CudaResult attention_forward(const AttentionForwardProblem& problem,
                             const CudaExecution& execution) {
  return on_cpu(attention_forward, problem, execution);
}

CudaResult attention_backward(const AttentionGradientProblem& problem,
                              const CudaExecution& execution) {
  return on_cpu(attention_backward, problem, execution);
}

CudaResult attention_bias_gradient(const AttentionGradientProblem& problem,
                                   const CudaExecution& execution) {
  return on_cpu(attention_bias_gradient, problem, execution);
}

CudaResult attention_taps(const AttentionTapsProblem& problem, const CudaExecution& execution) {
  return on_cpu(attention_taps, problem, execution);
}

CudaResult patch_embed_forward(const PatchEmbedForwardProblem& problem,
                               const CudaExecution& execution) {
  return on_cpu(patch_embed_forward, problem, execution);
}

CudaResult patch_embed_backward(const PatchEmbedGradientProblem& problem,
                                const CudaExecution& execution) {
  return on_cpu(patch_embed_backward, problem, execution);
}

CudaResult extract_patches(const PatchCopyProblem& problem, const CudaExecution& execution) {
  return on_cpu(extract_patches, problem, execution);
}

CudaResult restore_patches(const PatchCopyProblem& problem, const CudaExecution& execution) {
  return on_cpu(restore_patches, problem, execution);
}

CudaResult set_to_zero(void* data, int64_t bytes, const CudaExecution&) {
  std::memset(data, 0, bytes);
  return CudaResult::kOk;
}

const char* error_text(CudaResult) { return "text of an error"; }

}  // namespace vit

namespace xla::ffi {

const XLA_FFI_Api* GetXlaFfiApi() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api result = {};
    result.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    result.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                          XLA_FFI_API_MINOR};
    result.XLA_FFI_Handler_Register = register_handler;
    result.XLA_FFI_Error_Create = create_error;
    result.XLA_FFI_Error_GetMessage = get_message;
    result.XLA_FFI_Error_Destroy = destroy_error;
    result.XLA_FFI_ThreadPool_NumThreads = num_threads;
    result.XLA_FFI_Stream_Get = get_stream;
    return result;
  }();
  return &api;
}

}  // namespace xla::ffi

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  if (handlers().size() != 30) abort();  // 20 ops on CPUs, 10 on GPUs
  const auto& [name, handler] =
      *std::next(handlers().begin(), input.pick(0, static_cast<int64_t>(handlers().size()) - 1));
  const std::string& op = name.first;
  const auto has = [&](const char* part) { return op.find(part) != std::string::npos; };
  Call call = has("Attention")                              ? attention_call(input, op)
              : has("Encoder")                              ? encoder_call(input, has("Rotary"))
              : has("Model")                                ? model_call(input, has("Rotary"))
              : has("Gelu") || has("Norm") || has("Update") ? row_call(input, op)
                                                            : patch_call(input, op);
  const int64_t changes = input.pick(0, 3);
  for (int64_t i = 0; i < changes; ++i) change(input, call);
  Frame frame;
  if (!frame.fill(call)) return 0;
  XLA_FFI_Error* error = frame.run(xla::ffi::GetXlaFfiApi(), handler);
  if (changes == 0 && (error != nullptr) != call.is_refused) {
    fprintf(stderr, "%s on %s: %s\n", op.c_str(), name.second.c_str(),
            error ? error->message.c_str() : "not refused");
    abort();
  }
  delete error;
  return 0;
}
