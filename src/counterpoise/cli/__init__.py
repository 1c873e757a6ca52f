"""The command line: parsing and printing only; a file per command."""

from counterpoise.cli.app import app

__all__ = ["app"]
