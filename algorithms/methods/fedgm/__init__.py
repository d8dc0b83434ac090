"""FedGM: the method, how a client condenses its graph, and what the server trains on."""
