"""Synthetic graphs."""
