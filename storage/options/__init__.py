"""Options of stores and datasets, checked without reading data."""
