"""Edges between clients, and edges with features as a matrix."""
