"""Every key of a config, how it is read, and which keys change numbers."""
