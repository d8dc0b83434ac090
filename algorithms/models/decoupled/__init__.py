"""Models that read precomputed hops."""
