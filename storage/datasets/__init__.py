"""Whole graphs by name: published ones, the user's own, and synthetic ones."""
