"""The verbs (evaluate, compare, rank, plan, doctor) and the results they return."""
