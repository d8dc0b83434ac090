"""Clients that never take part in rounds, and are scored as if they came later."""
