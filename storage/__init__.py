"""Graphs and how they are stored: datasets in, the shard, split and hops of every client out, and the manifest."""
