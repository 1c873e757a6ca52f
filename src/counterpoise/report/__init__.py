"""The report: one HTML file that shows a result to people and opens anywhere, even without a network."""

from counterpoise.report.page import render, write_report

__all__ = ["render", "write_report"]
