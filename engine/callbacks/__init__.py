"""What a run calls as it goes along: logging, early stopping, a user's own code."""
