"""Targets that are no classes: numbers, or several labels an item; options, metrics and checks."""
