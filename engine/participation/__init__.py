"""Who takes part in a round: availability, draws, selection, and the cells that a cohort is divided into."""
