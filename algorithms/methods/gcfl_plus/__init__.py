"""GCFL+: clusters of clients, found from how their gradients go."""
