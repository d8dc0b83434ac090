"""Prompts: trained changes of a graph before a frozen model."""
