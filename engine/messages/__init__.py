"""Values sent between driver, server and hosts: job, cell, models."""
