"""The report: one HTML file that shows a result to people and opens anywhere, even without a network; and its smaller relatives."""

from counterpoise.report import pictures
from counterpoise.report.card import card
from counterpoise.report.page import render, write_report

__all__ = ["card", "pictures", "render", "write_report"]
