"""Classes loaded from a user's files."""
