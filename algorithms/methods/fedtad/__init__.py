"""FedTAD: the method, how reliable a client is for a class, and pseudo graphs that the server draws."""
