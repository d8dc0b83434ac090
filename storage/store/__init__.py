"""The store of a federation: shards, splits, hops, manifest, views."""
