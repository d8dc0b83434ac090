"""A config with several numbers of clients and hosts."""
