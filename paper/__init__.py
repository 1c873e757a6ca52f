"""The paper's experiments, rerun with the public API: its figures, its table, and single cells."""
