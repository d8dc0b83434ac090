"""Simulated time of finished runs: work of clients, schedules of rounds, tables and a page."""
