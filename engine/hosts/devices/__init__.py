"""Devices of hosts: results that are fetched together, and cells that train as one stack."""
