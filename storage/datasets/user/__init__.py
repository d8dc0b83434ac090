"""Graphs from a user's files and objects."""
