"""Shifts between the clients of a run: how far their labels, features and edges are from those of all."""
