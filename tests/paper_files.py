"""The way to the published numbers and sample logs, which lie beside the repository and not in it."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(name: str) -> Path:
    """A file or folder of published material; without it a test is skipped, except in CI, where it must be there."""
    path = SHARED / name
    if not path.exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs ../shared/{name}, which is not there")
        pytest.skip(f"needs ../shared/{name}, which is not there")
    return path
