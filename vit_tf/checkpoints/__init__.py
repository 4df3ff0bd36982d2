"""File formats of weights: the published npz layout, Hugging Face and timm.

`vit_tf.weights` opens and writes them. An open checkpoint of any format has these attributes, by
canonical published key (`published/`):

- `shapes`: key -> shape; `check(key)` raises `ValueError` if the array is damaged; `read(key)`
  returns it as float32.
- `config`: the model in the file, of which the arrays confirm the sizes. `trained_config`: what its
  weights were trained with, or None where the file does not tell. `grid`: (rows, columns) of its
  position table, or None.
- `preprocessing`: from an image to the model's input, or None where the file does not tell.
- `path`, `layout` ("published", "huggingface", "timm"), and `notes`: what was assumed of the
  source, a sentence each.
"""
