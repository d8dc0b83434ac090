"""Everything that knows Ray: host actors, their pool, the roster, the cluster."""
