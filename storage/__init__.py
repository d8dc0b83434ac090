"""What lies on disk: datasets in, one Arrow file a client, splits, hop features, the manifest."""
