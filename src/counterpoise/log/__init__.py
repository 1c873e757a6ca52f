"""A log and the question we ask of it: columns, targets, and the rule for a good row."""
