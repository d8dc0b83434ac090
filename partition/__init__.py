"""The client of every node: one file for each method, and the quality of the result."""
