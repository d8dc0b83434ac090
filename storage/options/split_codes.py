"""Codes of a split, int8 per item: unassigned, training, validation, test."""

UNASSIGNED, TRAIN, VAL, TEST = 0, 1, 2, 3
