"""What the columns of moments are called; kinds of rows have further ones, which stand in `log/kinds`."""

ROW: tuple[str, ...] = ("u", "s", "us")
MODEL: tuple[str, ...] = ("e", "ue", "v")
CONTEXT = "u·"  # prefix of the columns u·φ(x) of a context baseline
EXCESS, REWARD = "u@", "y@"  # names of the excess and the weighted reward at a position of a ranking: u@1, u@2, …
STEPS, CUT = "steps", "cut"  # of an episode: how many steps it has, and 1 if it was cut off before its end
SQUARE = "uu"  # u², which tells how far the coefficients of such a baseline can be trusted
LENGTH = "u×length"  # the length of a list times Σ(w − 1) over its positions, which tells whether the choice decides about its length
OF_WHOLE_LISTS = (LENGTH, STEPS, CUT)  # which are no control variates
