"""Searches: options that Optuna draws, the space of them, and the sections of the page."""
