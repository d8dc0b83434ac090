"""What the folders of features add to commands, readers, pages and sweeps: a declaration each, and the list of all."""
