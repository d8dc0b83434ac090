"""Robust reductions of means."""
