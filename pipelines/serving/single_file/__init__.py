"""Exports as one file for LiteRT or ONNX runtimes, with a JSON file beside it."""
