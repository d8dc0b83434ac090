"""What becomes of uploads: checks, attacks, compression, clipping, hidden sums, and reductions for the server."""
