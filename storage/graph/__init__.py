"""Graphs in memory: cleaning, labels, layout, propagation, sampling."""
