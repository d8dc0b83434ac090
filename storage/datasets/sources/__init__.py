"""Where raw files come from: folders, downloads, derived files."""
