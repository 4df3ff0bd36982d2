"""Hybrid stems and BiT ResNets in float64 NumPy, from published arrays (docs/paper.md C.1, C.2)."""

import numpy as np


def standardize(kernel, variance_epsilon, deviation_epsilon):
    kernel = kernel.astype(np.float64)
    mean = kernel.mean(axis=(0, 1, 2))
    return (kernel - mean) / (
        np.sqrt(kernel.var(axis=(0, 1, 2)) + variance_epsilon) + deviation_epsilon
    )


def windows(x, size, stride, padding, fill=0.0):
    """`[B, h, w, size, size, C]`; padding is "same" or a number of pixels."""
    before_after = [(0, 0)]
    for side in x.shape[1:3]:
        if padding == "same":
            total = max((-(-side // stride) - 1) * stride + size - side, 0)
            before_after.append((total // 2, total - total // 2))
        else:
            before_after.append((padding, padding))
    x = np.pad(x, [*before_after, (0, 0)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return np.moveaxis(view[:, ::stride, ::stride], 3, -1)


def conv(x, kernel, stride, padding):
    return np.einsum("bhwijc,ijcd->bhwd", windows(x, len(kernel), stride, padding), kernel)


def group_norm(x, scale, bias, epsilon, groups=32):
    batch, height, width, channels = x.shape
    grouped = x.reshape(batch, height * width, groups, channels // groups)
    mean, variance = (f(axis=(1, 3), keepdims=True) for f in (grouped.mean, grouped.var))
    grouped = (grouped - mean) / np.sqrt(variance + epsilon)
    return grouped.reshape(x.shape) * scale.reshape(-1) + bias.reshape(-1)


def mean_of_windows(x, stride):
    """The mean over the pixels in the image of windows of `stride x stride` pixels."""
    edge = [(0, -x.shape[1] % stride), (0, -x.shape[2] % stride)]
    x = np.pad(x, [(0, 0), *edge, (0, 0)], constant_values=np.nan)
    return np.nanmean(windows(x, stride, stride, 0), axis=(3, 4))


def relu(x):
    return np.maximum(x, 0)


def stem(arrays, images, units, group_norm_epsilon=1e-6, epsilons=(0.0, 1e-5)):
    """The feature map of a hybrid's ResNet, post-activation."""

    def convolve(x, name, stride=1):
        return conv(x, standardize(arrays[f"{name}/kernel"], *epsilons), stride, "same")

    def norm(x, name):
        return group_norm(x, arrays[f"{name}/scale"], arrays[f"{name}/bias"], group_norm_epsilon)

    x = relu(norm(convolve(images.astype(np.float64), "conv_root", 2), "gn_root"))
    x = windows(x, 3, 2, "same", fill=-np.inf).max(axis=(3, 4))
    for stage, count in enumerate(units, 1):
        for index in range(1, count + 1):
            unit = f"block{stage}/unit{index}"
            stride = 2 if stage > 1 and index == 1 else 1
            shortcut = x
            if f"{unit}/conv_proj/kernel" in arrays:
                shortcut = norm(convolve(x, f"{unit}/conv_proj", stride), f"{unit}/gn_proj")
            y = relu(norm(convolve(x, f"{unit}/conv1"), f"{unit}/gn1"))
            y = relu(norm(convolve(y, f"{unit}/conv2", stride), f"{unit}/gn2"))
            x = relu(norm(convolve(y, f"{unit}/conv3"), f"{unit}/gn3") + shortcut)
    return x


def bit(arrays, images, units, group_norm_epsilon=1e-5, epsilons=(1e-10, 0.0), layers=None):
    """Logits of a BiT ResNet, pre-activation.

    `layers` has functions by name: "block1/unit01/b" is the function in place of the convolution
    3 x 3 and whether the strides come before it, "block1/unit01/squeeze_excite" scales the result.
    """
    layers = layers or {}

    def convolve(x, name, stride=1, padding=0):
        kernel = arrays[f"resnet/{name}/standardized_conv2d/kernel"]
        return conv(x, standardize(kernel, *epsilons), stride, padding)

    def norm_relu(x, name):
        name = f"resnet/{name}group_norm"
        scale, bias = arrays[f"{name}/gamma"], arrays[f"{name}/beta"]
        return relu(group_norm(x, scale, bias, group_norm_epsilon))

    images = images.astype(np.float64)
    if len(arrays["resnet/root_block/standardized_conv2d/kernel"]) == 2:  # patches
        x = convolve(images, "root_block", 2)
    else:
        x = windows(convolve(images, "root_block", 2, 3), 3, 2, 1).max(axis=(3, 4))
    for stage, count in enumerate(units, 1):
        for index in range(1, count + 1):
            unit = f"block{stage}/unit{index:02}"
            stride = 2 if stage > 1 and index == 1 else 1
            y = norm_relu(x, f"{unit}/a/")
            if f"resnet/{unit}/a/proj/standardized_conv2d/kernel" in arrays:
                x = convolve(y, f"{unit}/a/proj", stride)
            y = norm_relu(convolve(y, f"{unit}/a"), f"{unit}/b/")
            if f"{unit}/b" in layers:
                # The mean comes before the layers that are built for one size of map.
                layer, first = layers[f"{unit}/b"]
                y = mean_of_windows(y, stride) if first else y
                y = layer(y) if first else mean_of_windows(layer(y), stride)
            else:
                y = convolve(y, f"{unit}/b", stride, 1)
            y = convolve(norm_relu(y, f"{unit}/c/"), f"{unit}/c")
            x = x + layers.get(f"{unit}/squeeze_excite", lambda y: y)(y)
    pooled = norm_relu(x, "").mean(axis=(1, 2))
    return pooled @ arrays["resnet/head/conv2d/kernel"][0, 0] + arrays["resnet/head/conv2d/bias"]
