"""Parts of losses: prototypes, distances, alignment, distillation, generators, label propagation."""
