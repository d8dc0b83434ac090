"""Federated methods, one file each, or one folder where a method is several files."""
