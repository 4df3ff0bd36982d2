"""Reads and writes models of other projects (Hugging Face, timm) as `.safetensors` files.

A layout has a module for each family of models that it supports. All modules have the functions
`recognizes(names)`, `read(path, shapes, folder, own_grid) -> ReadRules` and
`write(config, preprocessing, classes) -> WriteRules`. Both consist of rules between the layout's
tensors and the published arrays; a rule works in both directions. Settings that shapes do
not show are in the JSON files beside the weights.
"""
