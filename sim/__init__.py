"""Simulated time: replays a trace against a scheduler, an allocator and a cost model."""
