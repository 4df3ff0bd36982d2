"""Names of dtype policies, here and in other projects. Loads no framework."""

from vit_tf.config.near_names import did_you_mean

# Names in Keras. Quantized policies are left out: no configuration trains with them.
POLICIES = ("float32", "float64", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
# Half precision means a mixed policy: the weights stay float32.
SYNONYMS = {
    **dict.fromkeys(("fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "amp", "mixed"), "mixed_bfloat16"),
    **dict.fromkeys(("fp16", "f16", "float16", "half", "16-mixed"), "mixed_float16"),
}


def check_dtype(dtype):
    """Raises `ValueError` for another project's name of a policy; the message has the Keras name.

    All other values pass. Keras checks them later, because it accepts many policies and dtypes.
    """
    if isinstance(dtype, str) and dtype not in POLICIES and dtype.lower() in SYNONYMS:
        hint = did_you_mean(dtype, POLICIES, synonyms=SYNONYMS)
        raise ValueError(f"Unknown dtype policy {dtype!r}.{hint}")
