"""Models in Spark: fitted here, predicted in the executors; and policies that learn from its rows."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_models_predict_in_executors_what_they_predict_here(java, tmp_path):
    """In a process of its own, as Spark's threads outlive a test."""
    pytest.importorskip("pyspark")
    pytest.importorskip("torch")
    from spark_models import a_log

    a_log().write_parquet(tmp_path / "log.parquet")
    command = [sys.executable, str(Path(__file__).parent.with_name("spark_models.py")), str(tmp_path / "log.parquet")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["same"]
