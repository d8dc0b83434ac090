"""Digests of uploads, by which a run is replayed."""
