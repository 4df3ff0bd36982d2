"""Parts of the build of the compiled ops: object files, the CUDA toolkit, its report of kernels."""
