"""Names of dtype policies, and what they are called elsewhere. Loads no framework."""

from vit_tf.config.near_names import did_you_mean

# What Keras calls its policies; the quantized ones are not trained from a configuration.
POLICIES = ("float32", "float64", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
# Half precision means a mixed policy: the weights stay float32.
SYNONYMS = {
    **dict.fromkeys(("fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "amp", "mixed"), "mixed_bfloat16"),
    **dict.fromkeys(("fp16", "f16", "float16", "half", "16-mixed"), "mixed_float16"),
}


def check_dtype(dtype):
    """Raises `ValueError` with the name in Keras for a policy that has another name elsewhere.

    What is no such name is left for Keras to judge: it knows policies and dtypes of many kinds.
    """
    if isinstance(dtype, str) and dtype not in POLICIES and dtype.lower() in SYNONYMS:
        hint = did_you_mean(dtype, POLICIES, synonyms=SYNONYMS)
        raise ValueError(f"Unknown dtype policy {dtype!r}.{hint}")
