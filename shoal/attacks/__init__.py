"""Attacks on a run that is over, as a check: membership, classes of clients, rows and edges; the command."""
