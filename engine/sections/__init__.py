"""Sections of a config that belong to features: what a feature declares of itself, and the list of all."""
