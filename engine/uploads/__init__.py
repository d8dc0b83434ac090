"""What becomes of uploads: checks, attacks, compression, clipping, masks, and reductions to what the server reads."""
