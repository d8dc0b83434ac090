"""FGGP: the method, its bank of prototypes and how they vote, and the view that a client contrasts its graph with."""
