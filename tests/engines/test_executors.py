"""What Spark's executors send adds up to the whole log, and who has not set them up is told, all without a Spark."""

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from command_line import shop

import counterpoise as cp
from counterpoise.engines import spark
from counterpoise.engines.memory import Batches
from counterpoise.engines.registry import moments_of
from counterpoise.engines.summarize import finish
from counterpoise.evaluation.asking import question_of


class Session:
    """One that a set can hold weakly."""


@pytest.fixture
def question():
    return question_of(cp.Log(shop(), reward="click", propensity="p", drop_bad_rows=True), "pi_new")


def test_partial_moments_merged_in_pairs_are_those_of_the_whole_log(question):
    log = shop().with_columns(p=pl.when(pl.int_range(pl.len()) % 97 > 0).then("p"))
    texts = [""]  # of a partition without rows
    for partition in log.iter_slices(100):
        partial = Batches(question)
        partial.add(partition)
        texts.append(spark.as_text(partial))
    merge = spark.in_pairs(question)
    while len(texts) > 1:
        texts = [merge(*texts[k : k + 2]) if k + 1 < len(texts) else texts[k] for k in range(0, len(texts), 2)]
    (merged,) = finish(spark.added(question, texts).summary, question)
    (whole,) = moments_of(question_of(cp.Log(log, reward="click", propensity="p", drop_bad_rows=True), "pi_new"))
    assert (merged.n, merged.dropped) == (whole.n, whole.dropped)
    assert merged.dropped > 0
    found, expected = (cp.evaluate(moments)["pi_new", "snips"] for moments in (merged, whole))
    assert [found.value, found.stderr] == pytest.approx([expected.value, expected.stderr])


def test_an_error_of_one_partition_is_that_of_every_merge(question):
    merge, wrong = spark.in_pairs(question), '{"error": "these are no probabilities"}'
    assert merge("", wrong) == merge(wrong, "") == merge(wrong, wrong) == wrong
    with pytest.raises(cp.LogError, match="these are no probabilities"):
        spark.added(question, [merge(wrong, "")])


def test_executors_without_counterpoise_are_named_once_a_session(question, monkeypatch):
    asked = []

    def by_executors(question):
        asked.append(question)
        raise RuntimeError("PythonException: ModuleNotFoundError: No module named 'narwhals'")

    monkeypatch.setattr(spark, "_by_executors", by_executors)
    monkeypatch.setattr(spark, "complete", lambda question: (None, {}))
    monkeypatch.setattr(spark, "prepare_there", lambda *arguments: None)
    monkeypatch.setattr(spark, "summarize", lambda engine, question: ())
    of_spark = replace(question, log=question.log.of(SimpleNamespace(sparkSession=Session())))
    with pytest.warns(UserWarning, match=r"a Python without narwhals, .* Set the environment variable PYSPARK_PYTHON"):
        spark.moments_of(of_spark)
    spark.moments_of(of_spark)  # warnings are errors here
    assert len(asked) == 1
