"""Rounds in which some clients are offline, drop out, or come too late."""
