"""A board of methods by settings, with the digests by which anyone can make its runs again."""
