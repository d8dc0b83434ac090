"""`python -m shoal` is the command `shoal`."""

from shoal.cli.main import main

if __name__ == "__main__":
    main()
