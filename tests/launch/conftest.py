"""A SLURM that answers what a test says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.fake_slurm import FakeSlurm, fake_slurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm", monkeypatch)
