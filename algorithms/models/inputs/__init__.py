"""Inputs of models: adjacency of layers, batches of graphs, structure codes."""
