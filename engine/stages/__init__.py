"""What acts on the uploads of any method between clients and server, a folder a feature."""
