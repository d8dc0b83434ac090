"""The parts of a round: the method's exchange, mixing, evaluation, and the state between rounds."""
