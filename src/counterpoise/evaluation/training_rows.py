"""Whether a learned policy is judged by the rows that it was learned from, which flatter it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from counterpoise.diagnostics import Caveat
from counterpoise.evaluation.asking import Asked, Concern
from counterpoise.log.question import Learning, Question, RowWeight

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.log.sketches import Lesson, Overlap

CODE = "own-training-rows"
SAMPLE = 200_000  # rows of a log in Spark


class _NoWeight(RowWeight):
    needs_propensity = False


def check_training_rows(question: Question, asked: Asked) -> Iterator[Concern]:
    """A caveat for every policy that knows rows of this log from its learning; only policies that remember any are looked at."""
    lessons = {one.name: lesson for one in question.policies if (lesson := _lesson(one.source)) is not None}
    if not lessons or not question.log.context or question.log.action is None:
        return
    for name, overlap in _overlaps(question, lessons).items():
        if overlap.is_same:
            numbers = {"share": overlap.share, "share_of_training": overlap.share_of_sketch}
            yield Concern(Caveat(CODE, "caution", _text(overlap, lessons[name]), numbers), target=name)


def _lesson(source: Any) -> Lesson | None:
    """What a target remembers of how it was learned, if it was learned here."""
    from counterpoise.log.sketches import Lesson

    found = getattr(source, "lesson_", None)
    return found if isinstance(found, Lesson) else None


def _overlaps(question: Question, lessons: dict[str, Lesson]) -> dict[str, Overlap]:
    """How the rows of the log fit what each policy remembers; of several rewards, by the one that fits best."""
    from counterpoise.engines.registry import ENGINES, engine_of
    from counterpoise.log.sketches import row_keys

    log = question.log.but(
        propensity=None, key=(), cluster=None, model=None, items=None, value_samples=None, model_reward=None, model_value=None,
        baseline=None, slate=None, position=None, propensity_of=None, discount=None, candidates=None, control=None,
        logger=None, shares=None,
    )  # fmt: skip
    lean = Question(log, (), _NoWeight(), learning=Learning())
    watches = {name: {reward: one.sketch.watch() for reward in log.reward} for name, one in lessons.items()}

    def look(batches: Iterator[pl.DataFrame]) -> None:
        for batch in batches:
            good = batch.drop_nulls([str(log.action), *log.reward])
            context = [good.get_column(name) for name in log.context]
            for reward in log.reward:
                keys = row_keys(context, good.get_column(str(log.action)), good.get_column(reward))
                for mine in watches.values():
                    mine[reward].add(keys)

    engine = engine_of(log)
    if engine is ENGINES["spark"]:
        look(iter([engine.sampled(lean, SAMPLE)]))
    else:
        engine.over_rows(lean, look, None)
    return {
        name: max((one.overlap() for one in mine.values()), key=lambda one: (one.is_same, one.share))
        for name, mine in watches.items()
    }


def _text(overlap: Overlap, lesson: Lesson) -> str:
    share = f"{overlap.share:.0%}".replace("%", " %")
    said = f"It was learned from these rows: {share} of them were in its training, which flatters it."
    if lesson.estimate is not None:
        one = lesson.estimate
        said += (
            f" On rows that it had not seen, learning estimated {one['value']:.4g} per row ({one['lower']:.4g} to {one['upper']:.4g}), "
            f"with the verdict {one['verdict']}: use that, or"
        )
        return f"{said} evaluate it on other rows."
    return f"{said} Evaluate it on other rows."
