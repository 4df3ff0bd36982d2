"""The published npz layout: names and shapes of arrays <-> our variables and configurations.

The canonical layout is the layout of the files released with the paper and, for ResNets, of the BiT
files: keys joined with "/", float32 arrays, submodules of a block numbered together. Each family of
models has a module (`vit.py`, `resnet.py`); all modules have the same functions:

- `canonical_names(names)`: name in a file -> canonical key; None for models of other families.
- `config_from_shapes(shapes, path, grid)`: the configuration, from the shapes of the arrays.
- `array_fields(config)`: the fields that the arrays show.
- `trained_fields(config)`: the fields that the weights depend on, but that no array shows.
- `rules(model)`: the list of `Rule` between variables and arrays, used in both directions.
- `HEAD_PREFIXES`: starts of the keys of the layers that fine-tuning replaces, the classifier last;
  `head_layer(model, key)`: the layer that such a key belongs to.
- `read_positions(checkpoint, model, grid)`: the arrays of positions that depend on the patch grid,
  by key, on the grid of a model; none if the family has no positions.
- `OPTIONAL_KEYS`: keys of arrays in a file that a model need not use.
"""
