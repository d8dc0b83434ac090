"""Scores: counts of what clients predict, their table, and the numbers made of them; below rounds and hosts."""
