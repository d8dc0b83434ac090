"""Everything that knows Ray: the backend, its host actors and their pool."""
