"""Stored results in other programs' formats: timelines, memory snapshots, metrics, tables."""
