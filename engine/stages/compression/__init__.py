"""Uploads of fewer bytes: the largest numbers, or a byte a number."""
