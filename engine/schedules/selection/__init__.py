"""The choice of a round's clients from what the server knows of them."""
