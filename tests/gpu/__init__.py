"""The kernels for GPUs on the GPU of this machine; no module here imports TensorFlow."""
