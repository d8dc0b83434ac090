"""Sweeps and searches: many runs as one study."""
