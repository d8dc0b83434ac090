"""FedIIH: the method, and how far apart clients are in each latent factor."""
