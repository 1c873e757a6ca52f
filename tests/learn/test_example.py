"""The example on the Open Bandit sample runs from the log to an interval and a verdict."""

import importlib.util
from pathlib import Path

import learning  # noqa: F401  (skips without torch)
from paper_files import shared

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "learn_open_bandit.py"


def test_open_bandit_from_log_to_verdict(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("learn_open_bandit", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    result = example.learn(shared("obd"), tmp_path / "policy.safetensors")
    assert (tmp_path / "policy.safetensors").exists()
    assert "kept: epoch" in capsys.readouterr().out
    estimate = result["learned", "beta_ips"]
    assert estimate.n == 3000
    assert estimate.interval.lower < estimate.value < estimate.interval.upper
    assert result.verdict().verdict in ("ok", "caution")
