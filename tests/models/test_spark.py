"""One Spark for models (fitted here, predicted in the executors), for policies that learn from its rows, and for the report's plots."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_models_learners_and_plots_say_in_spark_what_they_say_here(java, tmp_path):
    """In a process of its own, as Spark's threads outlive a test; in one, as a session takes long to start."""
    pytest.importorskip("pyspark")
    pytest.importorskip("torch")
    from report.test_rows import awkward
    from spark_models import a_log

    a_log().write_parquet(tmp_path / "log.parquet")
    awkward().write_parquet(tmp_path / "awkward.parquet")
    script = Path(__file__).parent.with_name("spark_models.py")
    command = [sys.executable, str(script), str(tmp_path / "log.parquet"), str(tmp_path / "awkward.parquet")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["same"] * 5
