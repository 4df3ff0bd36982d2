// Errors of the ops, for every runtime that calls them.
#ifndef CUSTOM_OPS_CC_STATUS_H_
#define CUSTOM_OPS_CC_STATUS_H_

#include <sstream>
#include <string>

#include "custom_ops/cc/execution.h"

namespace vit {

// The numbers are the same as in absl::StatusCode and XLA_FFI_Error_Code.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kInternal = 13,
};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
};

// The parts are written one after the other.
template <class... Parts>
Status error(Code code, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  return {code, message.str()};
}

template <class... Parts>
Status invalid(const Parts&... parts) {
  return error(Code::kInvalidArgument, parts...);
}

inline Status status_of(Result result, const char* op) {
  if (result == Result::kOk) return {};
  return error(Code::kResourceExhausted, op,
               " could not allocate its scratch memory. Use a smaller batch, or fewer threads.");
}

}  // namespace vit

#define VIT_RETURN_IF_ERROR(expression)   \
  do {                                    \
    ::vit::Status status_ = (expression); \
    if (!status_.ok()) return status_;    \
  } while (false)

#endif  // CUSTOM_OPS_CC_STATUS_H_
