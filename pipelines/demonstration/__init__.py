"""What `pipelines.demo` does: steps, checked numbers, and the page that shows them."""
