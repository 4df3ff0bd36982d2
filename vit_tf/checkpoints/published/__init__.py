"""The published npz layout: names and shapes of arrays <-> our variables and configurations.

The canonical layout is that of the files released with the paper, and for ResNets of those of BiT:
keys joined with "/", float32 arrays, submodules of a block numbered together. There is a module for
each family of models with the same functions (`vit.py`, `resnet.py`):

- `canonical_names(names)`: name in a file -> canonical key; None if it is no model of the family.
- `config_from_shapes(shapes, path, grid)`: the configuration that the arrays show.
- `array_fields(config)`: the fields that the arrays decide.
- `trained_fields(config)`: the fields that no array shows and the weights depend on.
- `entries(model)`: the list of `Entry` between variables and arrays, used in both directions.
- `HEAD_PREFIXES`: starts of the keys of the layers that fine-tuning replaces, the classifier last;
  `head_layer(model, key)`: the layer that such a key belongs to.
- `POSITIONS`: the key of the position table, None where models have none;
  `read_positions(checkpoint, model, grid)`: that table on the grid of a model.
- `OPTIONAL_KEYS`: arrays of a file that a model may do without.
"""
