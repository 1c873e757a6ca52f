"""What the columns of moments are called: every name that a row's sums go by."""

ROW: tuple[str, ...] = ("u", "s", "us")
MODEL: tuple[str, ...] = ("e", "ue", "v")
CONTEXT = "u·"  # prefix of the columns u·φ(x) of a context baseline
EXCESS, REWARD = "u@", "y@"  # names of the excess and the weighted reward at a position of a list: u@1, u@2, …
PER, WEIGHTED_PER = "d", "ud"  # what a reward is divided by, if the answer is a ratio of sums; and u times it
# of a difference of two ratios: w − 1 of the other policy, and times s and d
RIVAL: tuple[str, ...] = ("b", "bs", "bd")
STEPS, CUT = "steps", "cut"  # of an episode: how many steps it has, and 1 if it was cut off before its end
SQUARE = "uu"  # u², which tells how far the coefficients of such a baseline can be trusted
INVERSE = "1/keep"  # how many rows before sampling a row stands for; every other column is then multiplied by it
LENGTH = "u×length"  # the length of a list times Σ(w − 1) over its positions, which tells whether the choice decides about its length
OF_WHOLE_LISTS = (LENGTH, STEPS, CUT)  # which are no control variates

# Where the reward is known for some rows only: O (or O/e), the proxy, and products. The excess is u, or d where two policies are compared.
LABEL, PROXY = "label", "proxy"


def of_labels(excess: str) -> tuple[str, ...]:
    """The columns of rows with a proxy, some of whose rewards are known, besides u, s and us."""
    return LABEL, f"{excess}×label", PROXY, f"{excess}×proxy", "label×proxy", f"{excess}×label×proxy"


LABELED, COMPARED = of_labels("u"), of_labels("d")
