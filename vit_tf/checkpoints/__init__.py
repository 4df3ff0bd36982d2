"""File formats of weights: the published npz layout, Hugging Face, timm and axial-deeplab.

`vit_tf.weights` opens and writes them. An open checkpoint of any format has these attributes; a key
is a canonical published key (`published/`):

- `shapes`: key -> shape; `check(key)` raises `ValueError` if the array is damaged; `read(key)`
  returns it as float32.
- `config`: the configuration of the model in the file; its sizes match the arrays.
  `trained_config`: the configuration that the weights were trained with, or None if the file does
  not state it. `grid`: (rows, columns) of the position table, or None.
- `position_resize`: how that table is resized, see `vit_tf.layers.resize_position_table`.
- `preprocessing`: the model's `Preprocessing`, or None if the file does not state it. Its mean and
  std belong to the arrays; `loading` converts them for a model that reads other pixels.
- `classes`: its `Classes`, or None if the file does not state them.
- `dtype`: the Keras dtype policy of the training, or None if the file does not state it.
- `path`, `layout` ("published", "huggingface", "timm", "axial_deeplab"), and `notes`: assumptions
  about the source, one sentence each.
"""
