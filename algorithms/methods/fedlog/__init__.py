"""FedLoG: the method, and the synthetic nodes that clients condense and are prompted with."""
