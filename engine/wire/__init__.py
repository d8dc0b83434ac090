"""What travels between driver, server and hosts: jobs, cells, models, seeds, how far a round is."""
