"""Unlearning: clients, nodes, edges and classes removed exactly by forks, and approximations scored against that."""
