"""Logs as training reads them: columns, rows and batches, in memory or from files."""
