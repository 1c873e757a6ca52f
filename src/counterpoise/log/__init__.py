"""A log and the question put to it: columns, targets, the rule for a good row."""
