"""FedDEP: the method, encoder and prototypes, the generator of embeddings, and the nodes that have them."""
