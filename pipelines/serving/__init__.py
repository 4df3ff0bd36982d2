"""SavedModels, prediction, and conversion between file formats."""
