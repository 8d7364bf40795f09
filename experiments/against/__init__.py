"""Two results folders held against each other: cells matched, differences with intervals, thresholds."""
