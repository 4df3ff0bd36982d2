"""A server for one model on this machine: REST as of TensorFlow Serving, and a page for people."""
