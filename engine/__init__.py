"""The paged engine: memory decisions in `core`, tensors in the other folders."""
