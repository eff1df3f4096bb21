"""Shared fixtures: where the real data lies, and quiet settings for every library."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

# A shell that starts jobs in the background has them ignore Ctrl-C, and their children too.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def _data_folder() -> Path:
    return Path(os.environ.get("PIVOTOPD_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real ALFWorld games; a test that needs it skips where it is absent."""
    folder = _data_folder()
    if not (folder / "alfworld").is_dir():
        pytest.skip(f"no real games at {folder} (set PIVOTOPD_DATA)")
    return folder


@pytest.fixture(scope="session")
def student() -> Path:
    """Folder of a small trained student; making it takes some 15 s, once a checkout."""
    from tests.small_student import small_student

    return small_student()


@pytest.fixture(scope="session")
def larger(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with the small student's tokenizer and more layers."""
    from tests.larger_model import make_larger_model

    return make_larger_model(tmp_path_factory.mktemp("larger") / "model", student)
