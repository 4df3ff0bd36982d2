"""The kernels for GPUs on the GPU of this machine: `python -m benchmarks.gpu`.

Modules that run in the driver import neither PyTorch nor TensorFlow. The code that computes on
the GPU runs in processes of its own, because an error of CUDA can make a process unusable.
"""
