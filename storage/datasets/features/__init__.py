"""Features made or replaced after reading."""
