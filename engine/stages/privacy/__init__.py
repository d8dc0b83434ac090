"""Differential privacy of clients and of nodes, with its accounting."""
