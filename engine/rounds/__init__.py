"""What a round is: the method's exchange, mixing, evaluation, and the state between rounds."""
