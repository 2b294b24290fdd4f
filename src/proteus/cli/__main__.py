"""`python -m proteus.cli` is the command `proteus`."""

from proteus.cli.commands import main

if __name__ == "__main__":
    main()
