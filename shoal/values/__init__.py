"""The values of clients of a run: the game of coalitions, estimates, the section of the page, the command."""
