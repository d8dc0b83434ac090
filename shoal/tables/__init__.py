"""Tables of studies and influences as texts, and those of papers."""
