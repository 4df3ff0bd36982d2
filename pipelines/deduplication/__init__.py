"""Near-duplicates of images: hashes, embeddings, their index on disk, pairs and the report."""
