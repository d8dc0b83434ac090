"""Codes of a split, int8 per item: unassigned, training, validation, test."""

UNASSIGNED, TRAIN, VAL, TEST = 0, 1, 2, 3
# Messages explain the codes so.
CODES = "0 is none, 1 training, 2 validation, 3 test"
