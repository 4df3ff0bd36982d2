// What compile.cc, which emits calls of the ops, and their handlers agree on.
#ifndef CUSTOM_OPS_XLA_OPS_H_
#define CUSTOM_OPS_XLA_OPS_H_

#include "custom_ops/tf/op_lists.h"

namespace vit {

// The attribute of a call that holds the value of the constant input, if the op has one.
constexpr char kConstant[] = "constant";

}  // namespace vit

#endif  // CUSTOM_OPS_XLA_OPS_H_
