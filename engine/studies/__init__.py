"""Many runs as one study: sweeps, searches, tables, scaling, comparisons."""
