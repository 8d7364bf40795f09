"""Kernel measurements on a device. Only `verb` and `drawn` need more than Python, NumPy and torch."""
