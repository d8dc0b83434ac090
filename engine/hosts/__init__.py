"""A host: a job opened, client visits, batches, results, devices."""
