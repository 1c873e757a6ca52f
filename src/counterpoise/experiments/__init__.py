"""The paper's evaluation experiments, on the public API: Figures 4 and 5, Table 1, single cells."""
