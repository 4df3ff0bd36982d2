"""The faults in C++."""

from tests.mutants.table import Fault

CPP = (
    Fault(
        "custom_ops/cc/attention_problem.cc",
        "swapped axes",
        "rows * columns, 1, columns}",
        "rows * columns, 1, rows}",
    ),
    Fault(
        "custom_ops/cc/encoder_problem.cc",
        "off by one",
        "((depth + pack - 1) / pack)",
        "(depth / pack)",
    ),
    Fault(
        "custom_ops/cpu/attention/forward.h",
        "dropped term",
        "totals[v] = totals[v] * rescale[v] + sums_of_block[v];",
        "totals[v] = totals[v] + sums_of_block[v];",
    ),
    Fault(
        "custom_ops/cpu/attention/forward.h",
        "missing mask",
        "if (keys % kPack) {",
        "if (keys % kPack > 1) {",
    ),
    Fault(
        "custom_ops/cpu/attention/backward.h",
        "dropped term",
        "for (int64_t group = 1; group < groups; ++group) {",
        "for (int64_t group = 2; group < groups; ++group) {",
    ),
    Fault(
        "custom_ops/cpu/attention/bias_gradient.h",
        "dropped term",
        "if (!key_stride) *at += total;",
        "if (!key_stride) *at = total;",
    ),
    Fault(
        "custom_ops/cpu/attention/taps.h",
        "missing mask",
        "sums.distance += on_grid == T(0) ? Vector<T>{} : p * distance;",
        "sums.distance += p * distance;",
    ),
    Fault(
        "custom_ops/cpu/patch_embed/pack.h",
        "wrong stride",
        "y / shape.rows() * shape.height + y % shape.rows() * shape.patch_size",
        "y * shape.patch_size",
    ),
    Fault(
        "custom_ops/cpu/patch_embed/images_gradient.h",
        "dropped term",
        "store_first(to + i, load(from + i) * scale, count - i);",
        "store_first(to + i, load(from + i), count - i);",
    ),
    Fault(
        "custom_ops/cpu/patch_embed/kernel_gradient.h",
        "wrong comparison",
        "block.sums + column, columns, d > 0);",
        "block.sums + column, columns, d > 1);",
    ),
    Fault(
        "custom_ops/cpu/encoder/cpu_encoder.cc",
        "removed statement",
        "      dense.bias = nullptr;\n",
        "",
    ),
    Fault(
        "custom_ops/cpu/encoder/first_row.h",
        "missing mask",
        "for (int64_t j = 0; j < count; ++j) total += weights[i + j];",
        "for (int64_t j = 0; j < kLanes<float>; ++j) total += weights[i + j];",
    ),
    Fault(
        "custom_ops/cpu/normalize.h",
        "missing mask",
        "    for (int64_t i = width - j; i < kLane; ++i) x[i] = 0;\n",
        "",
    ),
    Fault(
        "custom_ops/cpu/simd/math.h",
        "wrong constant",
        "broadcast<float>(-150.0f)",
        "broadcast<float>(-125.0f)",
    ),
    Fault(
        "custom_ops/cpu/simd/activations.h",
        "wrong constant",
        "0.1029432397f * (x * x)",
        "0.1030432397f * (x * x)",
    ),
    Fault(
        "custom_ops/cc/attention_op.h",
        "wrong stride",
        "axis_ ? &bias->line_stride : &bias->batch_stride,",
        "&bias->line_stride,",
    ),
    Fault(
        "custom_ops/cc/attention_op.h",
        "off by one",
        "if (tokens < 0 || patches <= tokens) return",
        "if (tokens < 0 || patches <= tokens + 1) return",
    ),
    Fault(
        "custom_ops/cc/patch_embed_op.h",
        "removed check",
        "d_tokens[1] >= 0 && d_tokens[1] < patches",
        "d_tokens[1] >= 0 && d_tokens[1] < 0",
    ),
    Fault(
        "custom_ops/cc/encoder_op.h",
        "wrong comparison",
        "if (layout != kEncoderLayout) {",
        "if (layout < kEncoderLayout) {",
    ),
    Fault(
        "custom_ops/cpu/team.cc",
        "skipped synchronization",
        "    while (helping_ > 0) none_helps_.wait_for(lock, std::chrono::hours(1));\n",
        "",
    ),
)
