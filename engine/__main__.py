"""`python -m shoal.engine`, and `python -m engine` in a checkout, are the command `shoal`."""

from shoal.engine.cli.main import main

if __name__ == "__main__":
    main()
