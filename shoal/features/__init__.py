"""Declarations of features: their commands, readers, sections of pages and searches; and the list of all."""
