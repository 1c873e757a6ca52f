"""Policies: what every one can do, the kinds that are ready to use, and how they are stored."""
