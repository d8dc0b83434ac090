"""`python -m engine` is `shoal`."""

from engine.commands.cli import main

if __name__ == "__main__":
    main()
