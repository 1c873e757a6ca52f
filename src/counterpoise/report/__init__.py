"""Shows results to people: the report (one HTML file that opens anywhere, even without a network), a notebook card, and plots."""

from counterpoise.report import pictures
from counterpoise.report.ab_tests import write_ab_test, write_backtest
from counterpoise.report.card import card
from counterpoise.report.page import render, write_report
from counterpoise.report.watching import write_watch

__all__ = ["card", "pictures", "render", "write_ab_test", "write_backtest", "write_report", "write_watch"]
