"""Tables of studies as texts, and those of papers."""
