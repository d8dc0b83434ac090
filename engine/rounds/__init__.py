"""What a round is: cohort, the method's exchange, reduction, mixing, evaluation, and the state between rounds."""
