"""The published npz layout: names and shapes of arrays <-> our variables and configurations.

The canonical layout is that of the files released with the paper, and for ResNets of those of BiT:
keys joined with "/", float32 arrays, submodules of a block numbered together. There is a module for
each family of models with the same functions (`vit.py`, `resnet.py`):

- `canonical_names(names)`: name in a file -> canonical key; None if it is no model of the family.
- `config_from_shapes(shapes, path, grid)`: the configuration that the arrays show.
- `array_fields(config)`: the fields that the arrays decide.
- `trained_fields(config)`: the fields that no array shows and the weights depend on.
- `entries(model)`: the list of `Entry` between variables and arrays, used in both directions.
- `HEAD_PREFIXES`, `OPTIONAL_KEYS`: what fine-tuning replaces, and what a model may do without.
"""
