"""FedGKC: the method, and how much a copilot knows."""
