"""FedSage+: the method, the generator of missing neighbours, what it learns from, and the graphs it augments."""
