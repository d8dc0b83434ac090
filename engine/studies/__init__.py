"""Many runs as one study: sweeps, tables, figures, reports, scaling, comparisons."""
