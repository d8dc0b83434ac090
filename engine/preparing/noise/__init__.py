"""Noise in the data of clients, a strength a client: the section `data.noise`."""
