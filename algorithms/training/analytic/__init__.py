"""Gradients of plain cross-entropy by their formulas, without autograd's graph of operations."""
