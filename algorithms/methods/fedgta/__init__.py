"""FedGTA: the method and its label sketches."""
