"""What is kept of a run: folder, checkpoints, summary, environment."""
