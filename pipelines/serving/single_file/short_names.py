"""Replaces the names in a LiteRT file, which are a tenth of a small one in 8 bits."""

# Tensors begin at multiples of so many bytes, as the format wants it.
_ALIGNMENT = 16


def with_short_names(content) -> bytes:
    """A LiteRT file with numbers as the names of all tensors but inputs and outputs.

    The converter names each tensor by the layers that it comes from. No runtime reads these names.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    class AlignedBuffer(schema.BufferT):
        def Pack(self, builder):
            if self.data is not None:
                builder.Prep(_ALIGNMENT, len(self.data))
            return super().Pack(builder)

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    for buffer in model.buffers:
        buffer.__class__ = AlignedBuffer
    for graph in model.subgraphs:
        named = {*graph.inputs, *graph.outputs}
        for index, tensor in enumerate(graph.tensors):
            if index not in named:
                tensor.name = str(index).encode()
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
