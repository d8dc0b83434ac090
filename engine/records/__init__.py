"""What is kept of a run: folder, checkpoints, summary, TensorBoard events, environment."""
