"""Local training: one client after another, or several in one batch."""
