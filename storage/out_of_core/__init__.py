"""Sorting and building CSR in files with bounded memory."""
