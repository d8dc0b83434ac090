"""Simulated time of finished runs: tables and a page."""
