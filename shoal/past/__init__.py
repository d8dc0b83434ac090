"""A run looked back at: as it was after a round, one visit made again, a fork."""
