"""The store of a federation: its manifest, how it is written, verified, and read from an address."""
