"""Federated methods, one file each, and the models they train. Torch only: no Ray, no files."""
