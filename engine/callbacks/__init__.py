"""Callbacks of a run: logging, early stopping, user code."""
