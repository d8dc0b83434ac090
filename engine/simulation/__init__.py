"""Simulated time: work of clients by formula, devices and links, schedules of rounds, orders of asynchronous visits."""
