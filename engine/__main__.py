"""`python -m shoal.engine`, and `python -m engine` in a checkout, are the command `shoal`."""

import importlib

if __name__ == "__main__":
    # The command stands above the engine, which imports nothing of it.
    importlib.import_module("shoal.cli.main").main()
