"""Finds fields by the keywords of timm, Keras and Hugging Face, for messages."""

from vit_tf.config.near_names import did_you_mean

# Keyword in other projects -> field of a configuration.
FIELDS = {
    **dict.fromkeys(("img_size", "input_shape", "input_size", "resolution"), "image_size"),
    **dict.fromkeys(("classes", "num_labels"), "num_classes"),
    **dict.fromkeys(("embed_dim", "hidden_dim"), "hidden_size"),
    **dict.fromkeys(("intermediate_size", "mlp_dim"), "mlp_size"),
    **dict.fromkeys(("depth", "num_hidden_layers", "num_layers"), "layers"),
    **dict.fromkeys(("num_attention_heads", "num_heads"), "heads"),
    **dict.fromkeys(("drop_rate", "dropout_rate", "hidden_dropout_prob"), "dropout"),
    **dict.fromkeys(
        ("attention_probs_dropout_prob", "attn_drop_rate", "attention_dropout_rate"),
        "attention_dropout",
    ),
    **dict.fromkeys(("drop_path", "drop_path_rate"), "stochastic_depth"),
    **dict.fromkeys(("global_pool", "pooling"), "classifier"),
    **dict.fromkeys(("num_register_tokens", "reg_tokens"), "register_tokens"),
    **dict.fromkeys(("act_layer", "hidden_act"), "activation"),
}
_TRAINED = "weights=NAME loads trained weights: a name of vit_tf.list_weights() or a file."
_COLORS = "Models read images of 3 colors."
# Keywords that no field stands for -> the way to the same.
_OTHER_WAYS = {
    **dict.fromkeys(("pretrained", "checkpoint_path"), _TRAINED),
    **dict.fromkeys(("in_chans", "in_channels", "num_channels"), _COLORS),
    "include_top": "num_classes=0 leaves the head out.",
    "classifier_activation": (
        "Models return logits: train with from_logits=True, and get probabilities from "
        "vit_tf.Classes().to_probabilities(logits)."
    ),
    "input_tensor": "Call the model with the tensor.",
    "mlp_ratio": "The field of a ViT is mlp_size: mlp_ratio times hidden_size.",
}


def field_hint(name, known) -> str:
    """The part of a message about an unknown field that says how to reach the same.

    Args:
        name: the unknown field.
        known: the fields that exist.

    Returns:
        One sentence with a space in front; "" if no field is near.
    """
    if name in _OTHER_WAYS:
        return f" {_OTHER_WAYS[name]}"
    if name in FIELDS and FIELDS[name] not in known:
        return f" Models of this family have no {FIELDS[name]}."
    return did_you_mean(name, known, synonyms=FIELDS)
