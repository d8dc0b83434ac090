"""The files of one client in a store: shard, split, hops; and the view that training reads."""
