"""Models and readouts from a user's file."""
