"""Models of Hugging Face transformers and of timm, both ways, as `.safetensors` files.

A layout has a module for each family of models that it can hold, with the same functions:
`recognizes(names)`, `read(path, shapes, folder, own_grid) -> ReadPlan` and
`write(config, preprocessing) -> WritePlan`. Both plans consist of rules between the layout's
tensors and the published arrays, which are used in both directions; what shapes do not tell is in
the JSON files beside the weights.
"""
