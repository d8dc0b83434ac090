"""A study: its runs by axes, its folder, groups of repetitions, and their numbers, curves and names."""
