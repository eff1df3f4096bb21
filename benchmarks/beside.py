"""Packages for a comparison, beside the locked ones: in a folder of their own, last on the path."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import util
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def trl_folder(root: Path) -> Path | None:
    """Put TRL on the path, installing it below ``root`` where it is not there.

    Returns:
        The folder; None where it cannot be installed. Nothing of the environment is changed or shadowed: the
        folder comes last on the path.
    """
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = root / f"site-{sys.version_info.major}.{sys.version_info.minor}-{digest}"
    if not (folder / "trl").is_dir() and util.find_spec("trl") is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run(
            [*command, "--target", str(folder), "-r", str(REQUIREMENTS)], check=False, capture_output=True
        )
        if done.returncode:
            return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return folder
