"""Compiled kernels over edges and rows."""
