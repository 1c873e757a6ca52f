"""`python -m counterpoise`: the command line without its script."""

from counterpoise.cli import app

if __name__ == "__main__":
    app()
