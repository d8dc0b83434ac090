"""Models that read features of edges, or kinds of them."""
