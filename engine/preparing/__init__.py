"""A config becomes a store."""
