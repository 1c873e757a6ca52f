"""Shows results to people: the report (one HTML file that opens anywhere, even without a network), a notebook card, and plots."""

from counterpoise.report import audit_picture, pictures
from counterpoise.report.card import card
from counterpoise.report.page import render, write_report

__all__ = ["audit_picture", "card", "pictures", "render", "write_report"]
