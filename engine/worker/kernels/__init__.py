"""What a step prepares on the device itself: its inputs from the record of rows, and changed entries of tables.

`prepare` and `scatter` launch on a CUDA device and compute in torch elsewhere; importing them imports no Triton.
"""
