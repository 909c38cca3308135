"""Frozen values: what the parts of the tuner hand to each other.

Nothing here does input or output, and nothing here imports from the rest of the package.
Units are in the names: seconds (`_s`), bytes (`_bytes`), rates (`_per_s`, `tok_s` = tokens per second).
"""
