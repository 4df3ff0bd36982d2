// The patch embedding on the CPU: cc/patch_embed_problem.h defines the problems. Results have the
// same bits for any number of threads.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_CPU_PATCH_EMBED_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_CPU_PATCH_EMBED_H_

#include "custom_ops/cc/execution.h"
#include "custom_ops/cc/patch_embed_problem.h"

namespace vit {

Result patch_embed_forward(const PatchEmbedForwardProblem& problem, const Execution& execution);

Result patch_embed_backward(const PatchEmbedGradientProblem& problem, const Execution& execution);

// Copies images to patches.
Result extract_patches(const PatchCopyProblem& problem, const Execution& execution);

// Copies patches to images.
Result restore_patches(const PatchCopyProblem& problem, const Execution& execution);

// Writes zeros to the pixels of images that no patch covers.
void clear_unread_pixels(const PatchShape& shape, int64_t element_size, void* images);

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_CPU_PATCH_EMBED_H_
