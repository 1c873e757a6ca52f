"""A log, wherever it lives, as moments."""
