"""The files of a folder: which splits and classes they are in, and in which order."""
