// What the OpKernels share: from TensorFlow's tensors, threads and errors to those of the kernels.
//
// Shapes are vectors in which -1 stands for a dimension that is not known yet, so that the shape
// functions and the kernels of an op make the same checks with the same texts.
#ifndef CUSTOM_OPS_TF_GLUE_H_
#define CUSTOM_OPS_TF_GLUE_H_

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "custom_ops/cc/kernel.h"
#include "custom_ops/cc/shares.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace vit {

using Dims = std::vector<int64_t>;

template <typename... Parts>
absl::Status invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

inline std::string text(const Dims& dims) {
  auto one = [](std::string* out, int64_t n) {
    n < 0 ? absl::StrAppend(out, "?") : absl::StrAppend(out, n);
  };
  return absl::StrCat("[", absl::StrJoin(dims, ", ", one), "]");
}

inline Dims dims_of(const tensorflow::Tensor& tensor) {
  Dims dims;
  for (int i = 0; i < tensor.dims(); ++i) dims.push_back(tensor.dim_size(i));
  return dims;
}

// Nothing where the rank is unknown.
inline std::optional<Dims> dims_of(tensorflow::shape_inference::InferenceContext* context,
                                   tensorflow::shape_inference::ShapeHandle shape) {
  if (!context->RankKnown(shape)) return std::nullopt;
  Dims dims;
  for (int i = 0; i < context->Rank(shape); ++i) {
    dims.push_back(context->Value(context->Dim(shape, i)));
  }
  return dims;
}

inline bool may_equal(int64_t one, int64_t other) { return one < 0 || other < 0 || one == other; }

// `layout` names the dimensions, such as "[B, H, W, C]".
inline absl::Status check_rank(const char* name, const Dims& dims, const char* layout) {
  const size_t rank = 1 + std::count(layout, layout + std::strlen(layout), ',');
  if (dims.size() == rank) return absl::OkStatus();
  return invalid(name, " must be ", layout, ", of rank ", rank, ". Received shape ", text(dims),
                 ".");
}

inline absl::Status check_shape(const char* name, const Dims& dims, const char* layout,
                                const Dims& expected) {
  bool fits = dims.size() == expected.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) fits = may_equal(dims[i], expected[i]);
  if (fits) return absl::OkStatus();
  return invalid(name, " has shape ", text(dims), ", but it must be ", layout, " = ",
                 text(expected), ".");
}

// The product of what is known to be at least 0.
inline absl::Status product(const char* name, const Dims& dims, int64_t* result) {
  *result = 1;
  if (std::count(dims.begin(), dims.end(), 0)) *result = 0;
  for (int64_t n : dims) {
    if (__builtin_mul_overflow(*result, n, result)) {
      return invalid(name, " of shape ", text(dims), " would have more than 2^63 - 1 elements.");
    }
  }
  return absl::OkStatus();
}

// Allocates an output, or says that no machine, or not this one, could.
inline absl::Status allocate(tensorflow::OpKernelContext* context, int index, const char* name,
                             const Dims& dims, tensorflow::Tensor** output) {
  int64_t elements, bytes;
  TF_RETURN_IF_ERROR(product(name, dims, &elements));
  const int64_t size = tensorflow::DataTypeSize(context->expected_output_dtype(index));
  static const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (__builtin_mul_overflow(elements, size, &bytes) || bytes > memory) {
    return invalid(name, " of shape ", text(dims), " would take ", size, " x ", elements,
                   " bytes, more than the ", memory, " bytes of this machine's memory.");
  }
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(dims, &shape));
  return context->allocate_output(index, shape, output);
}

inline void* data(tensorflow::Tensor* tensor) { return tensor ? tensor->data() : nullptr; }

inline void fill_with_zeros(tensorflow::Tensor* tensor) {
  if (tensor->TotalBytes()) std::memset(tensor->data(), 0, tensor->TotalBytes());
}

// The optional input of a list of none or one.
inline absl::Status optional_input(tensorflow::OpKernelContext* context, const char* name,
                                   const tensorflow::Tensor** input) {
  tensorflow::OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(name, &list));
  *input = nullptr;
  if (list.size() > 1) {
    return invalid(name, " must be a list of none or one tensor. Received: ", list.size(), ".");
  }
  if (list.size() == 1) *input = &list[0];
  return absl::OkStatus();
}

// Attributes hold no doubles: one is the sum of a list of floats.
inline double sum_of(const std::vector<float>& list) {
  double sum = 0;
  for (float x : list) sum += x;
  return sum;
}

// Of the types that the ops are registered for.
inline DType dtype_of(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_DOUBLE:
      return DType::kFloat64;
    case tensorflow::DT_BFLOAT16:
      return DType::kBfloat16;
    case tensorflow::DT_HALF:
      return DType::kFloat16;
    case tensorflow::DT_UINT8:
      return DType::kUint8;
    default:
      return DType::kFloat32;
  }
}

inline absl::Status status_of(Result result, const char* op) {
  if (result == Result::kOk) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      op, " found no memory for its scratch. Use a smaller batch, or fewer threads."));
}

// A task for another thread costs about a microsecond, and more until it starts: parts have at
// least this many cycles.
constexpr int64_t kCyclesPerPart = 50'000;

// Units of one kernel, and who has done how many of them.
class SharedWork {
 public:
  SharedWork(int64_t total, int64_t threads, int64_t least, RangeBody body, void* argument)
      : shares_(total, threads, least), left_(total), body_(body), argument_(argument) {}

  void take_part() {
    int64_t done = 0;
    for (int64_t begin, end; shares_.take(&begin, &end); done += end - begin) {
      body_(argument_, begin, end);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    left_ -= done;
    if (left_ == 0) none_left_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_left_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  Shares shares_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  int64_t left_;
  const RangeBody body_;
  void* const argument_;
};

// On the calling thread and as many of the pool's as are useful. Each asks for parts until none is
// left, so a thread that is busy with another op does not hold up this one: it comes to find nothing,
// maybe after all is over, when there is nothing left of the call but SharedWork.
inline void run_on_workers(void* pool, int64_t total, int64_t cost, RangeBody body,
                           void* argument) {
  const auto* workers = static_cast<const tensorflow::DeviceBase::CpuWorkerThreads*>(pool);
  const int64_t least = 1 + (kCyclesPerPart - 1) / std::max<int64_t>(cost, 1);
  const int64_t threads = std::min<int64_t>(workers->num_threads, total / least);
  if (threads <= 1) {
    if (total > 0) body(argument, 0, total);
    return;
  }
  const auto work = std::make_shared<SharedWork>(total, threads, least, body, argument);
  for (int64_t i = 1; i < threads; ++i) {
    workers->workers->Schedule([work] { work->take_part(); });
  }
  work->take_part();
  work->wait();
}

// TensorFlow's own threads for the inside of ops.
inline ParallelFor workers(tensorflow::OpKernelContext* context) {
  return {run_on_workers, const_cast<tensorflow::DeviceBase::CpuWorkerThreads*>(
                              context->device()->tensorflow_cpu_worker_threads())};
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_GLUE_H_
