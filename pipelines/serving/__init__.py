"""SavedModels with their signatures, files for other runtimes, and a server."""
