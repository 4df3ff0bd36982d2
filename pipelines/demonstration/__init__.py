"""What `pipelines.demo` does: stages, checked numbers, and the page that shows them."""
