"""Hostile clients: attacks on data and on uploads, and the score of a backdoor."""
