"""Files: atomic writes, checksums, memory maps, disk space."""
