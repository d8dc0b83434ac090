"""Bisection of two runs: the first round, client, phase and tensor in which they part, and its cause."""
