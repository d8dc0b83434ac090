"""Secure aggregation: sums behind masks or of ciphertexts."""
