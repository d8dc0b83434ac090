"""What a user may set: every key of a config, which of them change numbers, sizes for people."""
