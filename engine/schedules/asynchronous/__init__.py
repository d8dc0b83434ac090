"""Asynchronous rounds, whose clients are known ahead by simulated time."""
