"""Weighted rows in, moments out, wherever the log lives."""
