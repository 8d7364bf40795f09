"""The simulator held against the engine: the same traces, loads and allocators on both, and how far they are apart."""
