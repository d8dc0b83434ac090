"""FedGPL: one GNN on the server, prompts and heads on the clients."""
