"""What a person sees: tables, a run at work, progress, interruption."""
