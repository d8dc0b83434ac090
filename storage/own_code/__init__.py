"""Code of the user's own, given as `my_file.py:Name`: read once as text, sent as text, and run from the text."""
