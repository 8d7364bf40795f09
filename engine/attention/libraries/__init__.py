"""Thin adapters to attention libraries, where these are installed; importing this package needs none of them.

An adapter writes K and V by slot with this repository's kernel and reads with the library's, through views of the pool
that copy nothing: the block table is the one that every backend gets.
"""
