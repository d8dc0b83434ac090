"""`python -m engine` is `shoal`."""

from engine.commands.main import main

if __name__ == "__main__":
    main()
