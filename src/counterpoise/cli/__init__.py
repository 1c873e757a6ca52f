"""The command line: parsing and printing only."""

from counterpoise.cli.app import app

__all__ = ["app"]
