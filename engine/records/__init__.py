"""Records of a run: folder, checkpoints, metrics, summary."""
