"""Stages of the user's own, from files that a config names."""
