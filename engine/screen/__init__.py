"""The terminal: tables, live view, progress, interruption."""
