"""Checks of a log that sums cannot make: what single rows, their ids and their policies say against an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from counterpoise.evaluation.asking import Asked, Concern
from counterpoise.evaluation.training_rows import check_training_rows
from counterpoise.log.question import Question

Check = Callable[[Question, Asked], Iterator[Concern]]

# Each yields what it finds, and costs nothing where a log has not got what it looks at.
CHECKS: tuple[Check, ...] = (check_training_rows,)


def checked(asked: Asked) -> Asked:
    """The moments with what every check has to say; those that were handed over have no rows to check."""
    question = asked.question
    if question is None:
        return asked
    return replace(asked, concerns=tuple(concern for check in CHECKS for concern in check(question, asked)))
