// Checks of the patch ops, for fully or partially known shapes.
#ifndef CUSTOM_OPS_TF_PATCH_CHECKS_H_
#define CUSTOM_OPS_TF_PATCH_CHECKS_H_

#include "custom_ops/tf/dims.h"

namespace vit {

inline absl::Status check_kernel(const Dims& kernel) {
  TF_RETURN_IF_ERROR(check_rank("kernel", kernel, "[P, P, C, D]"));
  if (kernel[0] != 0 && kernel[1] != 0 && may_equal(kernel[0], kernel[1])) return absl::OkStatus();
  return invalid("kernel has shape ", text(kernel), ", but its first two dimensions must be one ",
                 "patch size P of at least 1.");
}

inline absl::Status check_images(const Dims& images, const Dims& kernel) {
  TF_RETURN_IF_ERROR(check_rank("images", images, "[B, H, W, C]"));
  if (may_equal(images[3], kernel[2])) return absl::OkStatus();
  return invalid("images have shape ", text(images), ", but the kernel of shape ", text(kernel),
                 " is for ", kernel[2], " channels.");
}

// Sets -1 if the number is not known.
inline absl::Status count_patches(const Dims& images, int64_t patch_size, int64_t* count) {
  *count = -1;
  if (images[1] < 0 || images[2] < 0 || patch_size < 0) return absl::OkStatus();
  return product("A grid of patches", {images[1] / patch_size, images[2] / patch_size}, count);
}

// [B, N, P P C]
inline absl::Status patches_of(const Dims& images, int64_t patch_size, Dims* patches) {
  TF_RETURN_IF_ERROR(check_rank("images", images, "[B, H, W, C]"));
  *patches = {images[0], -1, -1};
  TF_RETURN_IF_ERROR(count_patches(images, patch_size, &(*patches)[1]));
  if (images[3] < 0) return absl::OkStatus();
  return product("A patch", {patch_size, patch_size, images[3]}, &(*patches)[2]);
}

// Sets -1 if the number is not known.
inline absl::Status count_tokens(int64_t prefix, int64_t patches, int64_t* count) {
  *count = -1;
  if (prefix < 0 || patches < 0) return absl::OkStatus();
  if (!__builtin_add_overflow(prefix, patches, count)) return absl::OkStatus();
  return invalid("A prefix of ", prefix, " and ", patches,
                 " patches are more than 2^63 - 1 tokens.");
}

// The position has one row for each of `tokens`, which may be -1.
inline absl::Status check_position(const Dims& position, int64_t tokens, int64_t features) {
  TF_RETURN_IF_ERROR(check_rank("position", position, "[T + N, D]"));
  if (may_equal(position[0], tokens)) {
    return check_shape("position", position, "[T + N, D]", {tokens, features});
  }
  return invalid("position has another number of rows than there are tokens: it has shape ",
                 text(position), ", but it must be [T + N, D] = ", text({tokens, features}), ".");
}

// d_tokens holds any number of prefix tokens, followed by the patches.
inline absl::Status check_d_tokens(const Dims& d_tokens, int64_t batch, int64_t patches,
                                   int64_t features) {
  TF_RETURN_IF_ERROR(check_shape("d_tokens", d_tokens, "[B, T + N, D]", {batch, -1, features}));
  if (d_tokens[1] < 0 || d_tokens[1] >= patches) return absl::OkStatus();
  return invalid("d_tokens has shape ", text(d_tokens), ", with fewer tokens than there are ",
                 "patches, ", patches, ".");
}

// The rows of the prefix are the first tokens of d_tokens. The position has a row for each token.
inline absl::Status check_prefix(const Dims& prefix, const Dims& d_tokens) {
  TF_RETURN_IF_ERROR(check_shape("prefix", prefix, "[T, D]", {-1, d_tokens[2]}));
  if (d_tokens[1] < 0 || prefix[0] <= d_tokens[1]) return absl::OkStatus();
  return invalid("prefix has shape ", text(prefix), ", with more rows than d_tokens of shape ",
                 text(d_tokens), " has tokens.");
}

inline absl::Status check_num(const char* name, int64_t count) {
  if (count <= 1) return absl::OkStatus();
  return invalid("num_", name, " must be 0 or 1. Received: ", count, ".");
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_PATCH_CHECKS_H_
