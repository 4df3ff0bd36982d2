"""What is installed here: the report of `doctor`, and the TensorFlow that the commands need."""
