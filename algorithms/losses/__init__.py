"""What losses are made of: prototypes, distances, alignment, distillation, generators, label propagation."""
