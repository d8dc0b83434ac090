"""S2FGL: the method, nodes by how near labels are to them, and what two embeddings have at the ends of a spectrum."""
