"""The influence of clients on a run: runs without one of them, their table, the section of the page, the command."""
