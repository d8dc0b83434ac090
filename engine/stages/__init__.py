"""Stages, which act on the uploads of any method between clients and server, a folder a feature."""
