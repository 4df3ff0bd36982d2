"""The Vision Transformer in float64 NumPy, written from the equations of the paper.

Parameters are a dictionary in the published layout (`Transformer/encoderblock_0/...`), so nothing
here depends on how vit_tf stores its variables. Slow and plain on purpose.
"""

import math

import keras
import numpy as np

POSITIONS = "Transformer/posembed_input/pos_embedding"


def block_names(block):
    """The names of the weights of one encoder block: `(name in this module, published prefix)`.

    A block is a number or, in an axial model, "row_0", "column_0" and so on.
    """
    prefix = f"Transformer/encoderblock_{block}"
    return {
        "norm_attention": f"{prefix}/LayerNorm_0",
        "attention": f"{prefix}/MultiHeadDotProductAttention_1",
        "norm_mlp": f"{prefix}/LayerNorm_2",
        "mlp": f"{prefix}/MlpBlock_3",
        "attention_scale": f"{prefix}/LayerScale_0/scale",
        "mlp_scale": f"{prefix}/LayerScale_1/scale",
    }


def block_positions(index):
    """The name of the position table of a block after the first, with a table for each block."""
    return f"Transformer/encoderblock_{index}/posembed_input/pos_embedding"


def published(model):
    """The variables of a model in the published layout, float64, converted by hand."""
    width, heads = model.config.hidden_size, model.config.heads
    size = width // heads

    def value(variable):
        return np.asarray(variable.value, np.float64)

    params = {
        "embedding/kernel": value(model.patch_embedding.kernel),
        "embedding/bias": value(model.patch_embedding.bias),
        "Transformer/encoder_norm/scale": value(model.norm.gamma),
        "Transformer/encoder_norm/bias": value(model.norm.beta),
    }
    if model.class_token is not None:
        params["cls"] = value(model.class_token.token)[None]
    if model.register_tokens is not None:
        key = "dist" if model.config.classifier == "token_distilled" else "registers"
        params[key] = value(model.register_tokens.tokens)[None]
    for index, layer in enumerate(model.position_layers()):
        key = block_positions(index) if index else POSITIONS
        if model.config.position_embedding == "learned_2d":
            for name in ("prefix", "x", "y"):
                if (vectors := getattr(layer, name)) is not None:
                    params[f"{key}_{name}"] = value(vectors)[None]
        elif (table := layer.table) is not None:
            params[key] = keras.ops.convert_to_numpy(table).astype(np.float64)[None]
    for index, block in enumerate(model.blocks):
        axial = f"{('row', 'column')[index % 2]}_{index // 2}"
        names = block_names(axial if model.config.axial else index)
        if model.config.position_embedding == "relative":
            offsets = value(block.attention.relative.table)
            params[f"{names['attention']}/relative_embedding"] = offsets
        for ours in ("norm_attention", "norm_mlp"):
            params[f"{names[ours]}/scale"] = value(getattr(block, ours).gamma)
            params[f"{names[ours]}/bias"] = value(getattr(block, ours).beta)
        for i, part in enumerate(("query", "key", "value")):
            kernel = value(block.attention.qkv.kernel)[:, i * width : (i + 1) * width]
            params[f"{names['attention']}/{part}/kernel"] = kernel.reshape(width, heads, size)
            if not model.config.qkv_bias:
                continue
            if model.config.key_bias:
                bias = value(block.attention.qkv.bias)[i * width : (i + 1) * width]
            elif part == "key":
                continue
            else:
                bias = value(block.attention.bias)[i // 2]
            params[f"{names['attention']}/{part}/bias"] = bias.reshape(heads, size)
        if model.config.qk_norm:
            for part in ("query", "key"):
                norm = getattr(block.attention, f"norm_{part}")
                params[f"{names['attention']}/{part}_ln/scale"] = value(norm.gamma)
                params[f"{names['attention']}/{part}_ln/bias"] = value(norm.beta)
        out = block.attention.out
        params[f"{names['attention']}/out/kernel"] = value(out.kernel).reshape(heads, size, width)
        params[f"{names['attention']}/out/bias"] = value(out.bias)
        if model.config.layer_scale:
            for ours in ("attention_scale", "mlp_scale"):
                params[names[ours]] = value(getattr(block, ours).scale)
        for ours, theirs in (("dense_0", "Dense_0"), ("dense_1", "Dense_1")):
            for name in ("kernel", "bias"):
                array = value(getattr(getattr(block.mlp, ours), name))
                if model.config.activation == "swiglu" and ours == "dense_0":
                    gate, array = np.split(array, 2, axis=-1)
                    params[f"{names['mlp']}/Gate_0/{name}"] = gate
                params[f"{names['mlp']}/{theirs}/{name}"] = array
    for name in ("pre_logits", "head"):
        if getattr(model, name) is not None:
            params[f"{name}/kernel"] = value(getattr(model, name).kernel)
            params[f"{name}/bias"] = value(getattr(model, name).bias)
    if "dist" in params and model.head is not None:
        kernel, bias = params["head/kernel"], params["head/bias"]
        params |= {"head/kernel": kernel[:width], "head_dist/kernel": kernel[width:]}
        params |= {"head/bias": bias[0], "head_dist/bias": bias[1]}
    return params


def embed(params, images):
    """Patch embeddings `[B, N, D]` of images in [-1, 1], or of uint8 images (equation 1, x_p E)."""
    if images.dtype == np.uint8:
        images = (images.astype(np.float64) - 127.5) / 127.5
    kernel, bias = params["embedding/kernel"], params["embedding/bias"]
    side = kernel.shape[0]
    rows, columns = images.shape[1] // side, images.shape[2] // side
    tokens = np.zeros((len(images), rows * columns, kernel.shape[-1]))
    for row in range(rows):
        for column in range(columns):
            patch = images[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
            projected = np.einsum("bijc,ijcd->bd", patch.astype(np.float64), kernel)
            tokens[:, row * columns + column] = projected + bias
    return tokens


def positions_of(params, key=POSITIONS):
    """Positions of the tokens, `[T, D]`, or None: one table, or vectors per row and column."""
    if key in params:
        return params[key][0]
    if f"{key}_x" not in params:
        return None
    by_column, by_row = params[f"{key}_x"][0], params[f"{key}_y"][0]
    found = list(params[f"{key}_prefix"][0]) if f"{key}_prefix" in params else []
    for y in range(len(by_row)):
        for x in range(len(by_column)):
            found.append(np.concatenate([by_column[x], by_row[y]]))
    return np.array(found)


def encode(
    params,
    patches,
    heads,
    classifier="token",
    epsilon=1e-6,
    gelu=None,
    masks=None,
    grid=None,
    injection="stem",
    rotary_base=None,
):
    """Equations 1-4 from the patch embeddings to the final norm.

    Args:
        params: published layout.
        patches: `[B, N, D]`.
        heads: number of attention heads.
        classifier: "token" and "token_distilled" put the class token first, if there is one.
        epsilon: epsilon of every LayerNorm.
        gelu: activation; None for the tanh form.
        masks: what training multiplies with, by place (docs/paper.md A.7): "embedding" and, for
            block i, "i/weights", "i/attention", "i/attention branch", "i/hidden", "i/mlp",
            "i/mlp branch".
        grid: `(rows, columns)` of the patches, for an axial model.
        injection: "stem", "every_layer" or "every_layer_shared" (docs/paper.md D.1).
        rotary_base: base of the rotations of queries and keys; None for none.

    Returns:
        `(features [B, T, D], weights)`: the attention weights `[B, heads, T, T]` of each block; in
        an axial model they are 0 between different rows, or between different columns.
    """
    gelu, masks = gelu or gelu_tanh, masks or {}
    tokens = patches
    if classifier.startswith("token") and "cls" in params:
        cls = np.broadcast_to(params["cls"], (len(tokens), 1, tokens.shape[-1]))
        tokens = np.concatenate([cls, tokens], axis=1)
    positions = positions_of(params)
    if positions is not None and injection == "stem":
        tokens = tokens + positions
    for name in {"dist", "registers"} & params.keys():  # behind the class token, without positions
        first = tokens.shape[1] - patches.shape[1]
        added = np.repeat(params[name], len(tokens), axis=0)
        tokens = np.concatenate([tokens[:, :first], added, tokens[:, first:]], axis=1)
    tokens = tokens * masks.get("embedding", 1.0)

    def rotated(x):
        return x if rotary_base is None else rotate(x, grid, rotary_base)

    found = []
    for index, (block, visible) in enumerate(_blocks(params, grid)):
        names = block_names(block)
        if injection == "every_layer_shared" or (injection == "every_layer" and index == 0):
            tokens = tokens + positions
        elif injection == "every_layer":
            tokens = tokens + positions_of(params, block_positions(index))
        normed = _norm(params, names["norm_attention"], tokens, epsilon)
        mask = masks.get(f"{index}/weights", 1.0)

        def prepared(part, x, name=names["attention"]):
            if f"{name}/{part}_ln/scale" in params:
                x = _norm(params, f"{name}/{part}_ln", x, epsilon)
            return rotated(x)

        attended, weights = _attention(
            params, names["attention"], normed, heads, mask, visible, prepared
        )
        attended = attended * masks.get(f"{index}/attention", 1.0)
        attended = attended * params.get(names["attention_scale"], 1.0)
        tokens = tokens + attended * masks.get(f"{index}/attention branch", 1.0)

        normed = _norm(params, names["norm_mlp"], tokens, epsilon)
        hidden = _dense(params, f"{names['mlp']}/Dense_0", normed)
        if f"{names['mlp']}/Gate_0/kernel" in params:  # Shazeer (2020), eq. 6 with beta = 1
            gate = _dense(params, f"{names['mlp']}/Gate_0", normed)
            hidden = gate / (1 + np.exp(-gate)) * hidden
        else:
            hidden = gelu(hidden)
        hidden = hidden * masks.get(f"{index}/hidden", 1.0)
        out = _dense(params, f"{names['mlp']}/Dense_1", hidden) * masks.get(f"{index}/mlp", 1.0)
        out = out * params.get(names["mlp_scale"], 1.0)
        tokens = tokens + out * masks.get(f"{index}/mlp branch", 1.0)
        found.append(weights)
    return _norm(params, "Transformer/encoder_norm", tokens, epsilon), found


def options_of(config):
    """The options of `encode` for a model of this configuration; `forward` finds the grid."""
    return {
        "epsilon": config.layer_norm_epsilon,
        "gelu": {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf}.get(config.activation),
        "injection": config.position_injection,
        "rotary_base": config.rotary and config.rotary_base,
    }


def _blocks(params, grid):
    """`(block, bool [T, T])`: the blocks in order, and which tokens see which others there."""
    count = len({key for key in params if key.endswith("LayerNorm_2/scale")})
    if f"{block_names('row_0')['norm_mlp']}/scale" not in params:
        return [(index, True) for index in range(count)]
    row, column = np.indices(grid).reshape(2, -1)
    same_row, same_column = row[:, None] == row, column[:, None] == column
    layers = range(count // 2)
    return [x for i in layers for x in ((f"row_{i}", same_row), (f"column_{i}", same_column))]


def classify(params, features, classifier="token"):
    """Pooling, then tanh pre-logits and head, if the parameters have them."""
    if classifier == "token_distilled":
        if "head/kernel" not in params:
            return np.concatenate([features[:, 0], features[:, 1]], axis=-1)
        first = _dense(params, "head", features[:, 0])
        return (first + _dense(params, "head_dist", features[:, 1])) / 2
    registers = params["registers"].shape[1] if "registers" in params else 0
    if classifier == "token":
        pooled = features[:, 0]
    elif classifier == "gap":
        pooled = features[:, registers:].mean(axis=1)
    else:
        pooled = features[:, registers:]
    if "pre_logits/kernel" in params:
        pooled = np.tanh(_dense(params, "pre_logits", pooled))
    return _dense(params, "head", pooled) if "head/kernel" in params else pooled


def forward(params, images, heads, classifier="token", **options):
    """Images to the output of the model; `options` as for `encode`."""
    side = params["embedding/kernel"].shape[0]
    grid = (images.shape[1] // side, images.shape[2] // side)
    features, _ = encode(params, embed(params, images), heads, classifier, grid=grid, **options)
    return classify(params, features, classifier)


def rotate(x, grid, base):
    """Rotates the last tokens `[B, T, d]`, patches of a grid, pair by pair of channels.

    A patch in row r of R has the place `2 (r + 1/2) / R - 1`, and so for columns. Channels j and
    `j + d / 2` are a pair. Its angle is `2 pi place / base^(4 k / d)`, of rows for the first d / 4
    pairs and of columns for the others; k counts the pairs of each.
    """
    x, (rows, columns), size = x.copy(), grid, x.shape[-1]
    first = x.shape[1] - rows * columns
    for row in range(rows):
        for column in range(columns):
            token = first + row * columns + column
            places = 2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1
            for pair in range(size // 2):
                place, k = places[pair // (size // 4)], pair % (size // 4)
                turned = np.exp(2j * math.pi * place / base ** (4 * k / size))
                turned = turned * (x[:, token, pair] + 1j * x[:, token, pair + size // 2])
                x[:, token, pair], x[:, token, pair + size // 2] = turned.real, turned.imag
    return x


def gelu_tanh(x):
    """docs/paper.md A.6, left column."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    """docs/paper.md A.6, right column."""
    return 0.5 * x * (1 + np.vectorize(math.erf)(np.asarray(x) / math.sqrt(2)))


def resize_positions(table, source_grid, target_grid, prefix):
    """Resizes positions `[prefix + rows * columns, D]` in loops (docs/paper.md B.6)."""
    (old_rows, old_columns), (rows, columns) = source_grid, target_grid
    grid = np.asarray(table, np.float64)[prefix:].reshape(old_rows, old_columns, -1)

    def neighbors(index, old, new):
        at = 0.0 if new == 1 else index * (old - 1) / (new - 1)
        lower = min(math.floor(at), old - 1)
        return lower, min(lower + 1, old - 1), at - lower

    resized = []
    for row in range(rows):
        top, bottom, down = neighbors(row, old_rows, rows)
        for column in range(columns):
            left, right, along = neighbors(column, old_columns, columns)
            upper = grid[top, left] * (1 - along) + grid[top, right] * along
            lower = grid[bottom, left] * (1 - along) + grid[bottom, right] * along
            resized.append(upper * (1 - down) + lower * down)
    return np.concatenate([np.asarray(table, np.float64)[:prefix], np.array(resized)])


def _norm(params, name, x, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    normed = (x - mean) / np.sqrt(variance + epsilon)
    return normed * params[f"{name}/scale"] + params[f"{name}/bias"]


def _dense(params, name, x):
    return x @ params[f"{name}/kernel"] + params[f"{name}/bias"]


def _attention(params, name, x, heads, mask, visible, prepared):
    """Multi-head attention, appendix A, equations 5-8; `mask` multiplies the weights.

    `prepared(part, x)` changes the queries and the keys of a head, `part` "query" or "key".
    `visible`, bool `[T, T]` or True, says which keys the softmax of a query is over.
    """
    size = x.shape[-1] // heads
    out = np.zeros_like(x) + params[f"{name}/out/bias"]
    found = []
    for head in range(heads):
        query, key, value = (
            x @ params[f"{name}/{part}/kernel"][:, head]
            + (params[f"{name}/{part}/bias"][head] if f"{name}/{part}/bias" in params else 0.0)
            for part in ("query", "key", "value")
        )
        query, key = prepared("query", query), prepared("key", key)
        logits = query @ key.transpose(0, 2, 1)
        if f"{name}/relative_embedding" in params:
            logits = logits + _relative(query, params[f"{name}/relative_embedding"])
        logits = logits / math.sqrt(size)
        logits = np.where(visible, logits, -np.inf)
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights = powers / powers.sum(axis=-1, keepdims=True)
        found.append(weights)
        if not np.isscalar(mask):
            weights = weights * mask[:, head]
        out = out + weights @ value @ params[f"{name}/out/kernel"][head]
    return out, np.stack(found, axis=1)


def _relative(query, table):
    """`q_i . r_(i - j)` for each query i and key j; row n of the table is the offset T - 1 - n."""
    count = query.shape[1]
    logits = np.zeros((len(query), count, count))
    for i in range(count):
        for j in range(count):
            logits[:, i, j] = query[:, i] @ table[count - 1 - (i - j)]
    return logits
