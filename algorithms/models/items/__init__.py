"""Models as clients of nodes, graphs or pairs use them."""
