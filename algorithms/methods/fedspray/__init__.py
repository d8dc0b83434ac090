"""FedSpray: the method, and the encoder whose targets do without a client's edges."""
