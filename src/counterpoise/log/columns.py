"""What the columns of a query are called; kinds of rows have further ones, which stand in `log/kinds`."""

PROPENSITY, MODEL_REWARD, MODEL_ERROR, GROUP, KEY, ROWS, ROW_NUMBER = "p", "q", "e", "g", "key", "n", "row"

# what a policy learns from: the logged action, its id (−1 if it has none), how many candidates there were and whether it was one of
# them, and the sum of a reward model's predictions
ACTION, ID, CANDIDATES, IS_CANDIDATE, MODELED = "action", "id", "candidates", "is candidate", "modeled"


def context_at(place: int) -> str:
    """The name of a column of the context, as it is logged."""
    return f"context {place}"


def is_known_at(place: int) -> str:
    """The name of the column that says where this context is finite."""
    return f"{context_at(place)} is known"
