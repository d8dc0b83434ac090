"""Models that pass messages over the graph."""
