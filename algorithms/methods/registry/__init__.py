"""Methods by name: loading and checks."""
