"""Scores of all clients' items together, where a run records means of those of each client."""
