// Prints what calls without a GPU say: the results of two functions, and the texts of some errors.
#include <stdio.h>

#include "custom_ops/cuda/cuda_execution.h"

int main() {
  char byte;
  const vit::CudaExecution execution = {nullptr, nullptr, nullptr};
  printf("%d\n", static_cast<int>(vit::set_to_zero(&byte, 1, execution)));
  int64_t shared = 0;
  printf("%d\n", static_cast<int>(vit::most_shared_bytes(&shared)));
  const int errors[] = {35, 222, 209, 98, 9, static_cast<int>(vit::CudaResult::kNoKernel), 700};
  for (int error : errors) puts(vit::error_text(static_cast<vit::CudaResult>(error)));
}
