"""Off-policy evaluation and learning that you can act on."""

__version__ = "0.1.0"
