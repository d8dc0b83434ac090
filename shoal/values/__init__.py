"""The values of clients of a run: games of coalitions, estimates of their values, the section of the page, the command."""
