"""The simulation on Ray: configuration, hosts, server, round loop, checkpoints, metrics and the command."""
