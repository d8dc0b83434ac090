"""Graphs derived from a client's graph: views, augmentations, candidates, nearest neighbours."""
