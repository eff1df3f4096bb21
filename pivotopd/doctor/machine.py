"""This machine: Python, libraries, a compiler, a GPU, loopback ports."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pivotopd.doctor.finding import Finding, finding_of
from pivotopd.doctor.programs import first_line

_PORT = "MASTER_PORT"


def python() -> Iterator[Finding]:
    """Yield whether this Python is new enough."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    found = f"{version} at {sys.executable}"
    yield Finding("Python", sys.version_info >= (3, 11), found, "install Python 3.11 or later")


def libraries(names: Sequence[str]) -> Iterator[Finding]:
    """Yield whether each library loads: an installed one can still fail to."""
    mend = "run `make install`, or pip install -c requirements.lock -e ."
    for name in names:
        yield finding_of(name, partial(_imported, name), mend)


def _imported(name: str) -> str:
    importlib.import_module(name)
    return importlib.metadata.version(name)


def compiler() -> Iterator[Finding]:
    """Yield what compiles DeepSpeed's operators."""
    why = "DeepSpeed compiles one extension at the first update; "
    yield finding_of("g++", lambda: first_line("g++", "--version"), why + "install g++ (apt-get install g++)")
    yield finding_of("ninja", lambda: first_line("ninja", "--version"), why + "pip install ninja")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    yield Finding("Python headers", header.is_file(), str(header), why + "install python3-dev")


def gpu(*, needed: bool) -> Iterator[Finding]:
    """Yield the GPUs that torch sees.

    Args:
        needed: The configuration cannot do without one.
    """
    driver = None
    if shutil.which("nvidia-smi") is not None:
        driver = finding_of(
            "GPU driver",
            lambda: first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
            "the driver is there but does not answer: see `nvidia-smi`",
        )
        yield driver
    has_driver = driver is not None and driver.ok
    mend = (
        "install a torch build for the driver's CUDA version: https://pytorch.org/get-started"
        if has_driver
        else "runs go on the CPU; for a GPU install its driver and a torch build for it"
    )
    yield finding_of("GPU in torch", _gpus, mend, required=needed or has_driver)


def _gpus() -> str:
    import torch  # noqa: PLC0415 - slow to import

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees none")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{', '.join(names)}; CUDA {torch.version.cuda}"


def ports() -> Iterator[Finding]:
    """Yield whether processes of this machine can listen to each other, and at the port that is set."""
    mend = "Prefect's temporary server and the learner's ranks listen on 127.0.0.1; allow that"
    yield finding_of("loopback ports", lambda: _listening(0), mend)
    wanted = os.environ.get(_PORT)
    if wanted is not None:
        mend = f"end what listens there, or set {_PORT} to another port"
        yield finding_of(f"port of ${_PORT}", lambda: _listening(_number(wanted)), mend)


def _number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65_536:
        raise RuntimeError(f"{text!r} is no port")
    return int(text)


def _listening(port: int) -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", port))
        one.listen(1)
        return f"127.0.0.1:{one.getsockname()[1]} is free" if port else "127.0.0.1 can be listened at"


def stock_engine() -> Iterator[Finding]:
    """Yield whether the reference engine is there, which only a comparison of engines needs."""
    for name in ("textworld", "fast_downward", "alfworld"):
        yield finding_of(
            f"reference engine, {name}",
            partial(installed, name),
            "only needed to compare engines: bash infra/stock_engine.sh",
            required=False,
        )


def installed(name: str) -> str:
    """Return that a module is there, without importing it; ModuleNotFoundError where it is not."""
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"no module {name}")
    return "installed"


def lora() -> Iterator[Finding]:
    """Yield whether adapters can be trained."""
    yield finding_of("peft", partial(installed, "peft"), "update.lora needs it: pip install 'pivotopd[lora]'")


def vllm(*, needed: bool = False) -> Iterator[Finding]:
    """Yield which build of vLLM is installed; it is not imported, which takes ten seconds."""
    yield finding_of(
        "vLLM",
        _vllm_version,
        "only needed to run a language model by it here: pip install 'pivotopd[vllm]', without a GPU"
        " bash infra/vllm_cpu.sh",
        required=needed,
    )


def _vllm_version() -> str:
    installed("vllm")
    builds = importlib.metadata.packages_distributions().get("vllm", [])
    return ", ".join(f"{build} {importlib.metadata.version(build)}" for build in builds) or "installed"
