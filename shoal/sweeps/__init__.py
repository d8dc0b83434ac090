"""Sweeps: many runs as one study."""
