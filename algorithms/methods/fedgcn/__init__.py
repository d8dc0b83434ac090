"""FedGCN: sums over neighbours at all clients, before FedAvg."""
