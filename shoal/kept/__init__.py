"""Runs, sweeps and stores, here and at addresses: finds, describes, compares and removes them."""
