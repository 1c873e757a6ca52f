"""The verbs: evaluate, compare, rank, plan, doctor, and the result they give."""
