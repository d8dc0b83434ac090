"""Training of several clients in one batch."""
