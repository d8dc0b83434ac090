"""Models, one file each, all mapping some nodes to logits and an embedding.

A decoupled backbone reads rows of the hops, a coupled one features and the matrices of a neighbourhood.
"""
