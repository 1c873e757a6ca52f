"""What a verdict doubts, by the codes of its caveats, which stay the same when the wording changes."""


def codes(verdict):
    """The codes of all caveats, notes included."""
    return {caveat.code for caveat in verdict.caveats}


def numbers(verdict, code):
    """The numbers of the only caveat with a code."""
    (caveat,) = (caveat for caveat in verdict.caveats if caveat.code == code)
    return dict(caveat.numbers)
