"""Sources of raw files: folders, downloads, derived files."""
