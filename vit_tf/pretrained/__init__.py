"""Published weights: which files exist, how they are downloaded, and the names of their classes."""
