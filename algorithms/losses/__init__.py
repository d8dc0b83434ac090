"""What losses are made of: prototypes, distances, alignment, generators, label propagation."""
