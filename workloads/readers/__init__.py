"""Readers of foreign trace formats, one file each: `claims` recognises a file, `read` adds its rows."""
