"""Hops over edges between clients."""
