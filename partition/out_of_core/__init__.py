"""Partitioning of graphs larger than memory."""
