// Prints what calls without a GPU say: the result of a launcher, and the texts of some errors.
#include <stdio.h>

#include "custom_ops/cuda/execution.h"

int main() {
  char byte;
  const vit::CudaExecution execution = {nullptr, nullptr, nullptr};
  printf("%d\n", static_cast<int>(vit::set_to_zero(&byte, 1, execution)));
  const int errors[] = {35, 222, 9, 700};
  for (int error : errors) puts(vit::error_text(static_cast<vit::CudaResult>(error)));
}
