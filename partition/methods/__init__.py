"""Partitioning methods, one file each."""
