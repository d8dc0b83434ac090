"""What is wrong at random; a package, so that `benchmarks/attack.py` does not hide it."""
