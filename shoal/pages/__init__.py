"""Pages of runs and studies: figures, heads, sections, papers' tables."""
