"""Models whose passes, forward and backward, run as one compiled call each."""
