"""Shows results to people: the report (one HTML file that opens anywhere, even without a network), a notebook card, and plots."""

from counterpoise.report import audit_picture, backtest, distribution, pictures
from counterpoise.report.ab_test import write_ab_test
from counterpoise.report.backtest import write_backtest
from counterpoise.report.card import card, table_card
from counterpoise.report.page import render, write_report

__all__ = [
    "audit_picture",
    "backtest",
    "card",
    "distribution",
    "pictures",
    "render",
    "table_card",
    "write_ab_test",
    "write_backtest",
    "write_report",
]
