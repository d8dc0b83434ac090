"""Models, built from their options."""
