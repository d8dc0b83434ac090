"""FedPG, and what only FedPG uses."""
