"""`python -m shoal` is the command `shoal`."""

from shoal.engine.cli.main import main

if __name__ == "__main__":
    main()
