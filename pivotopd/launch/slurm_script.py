"""The batch script of a job: rendered from a template that a user can read, every value quoted for its place.

Lines that begin with ``#SBATCH`` are read by sbatch, which knows double quotes and backslashes but no
variables; in paths of log files it replaces ``%``. All else is read by bash.
"""

from __future__ import annotations

import math
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from pivotopd import __version__
from pivotopd.errors import ConfigError
from pivotopd.launch.base import LOG, Needed, Task
from pivotopd.launch.slurm_section import SlurmSection

_RANK: Final = 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'
"""What each process of several runs before the command."""
_RANK_VARIABLES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def render_script(task: Task, section: SlurmSection, *, folder: str, workdir: str) -> str:
    """Return the batch script of a task.

    Args:
        task: The job.
        section: Settings of SLURM.
        folder: Absolute folder of its log and exit code.
        workdir: Absolute folder in which the command runs.

    Raises:
        ConfigError: A folder's name cannot stand in a batch script.
    """
    for path in (folder, workdir):
        _refuse_path(path)
    needed = task.resources
    names = ("partition", "account", "constraint")
    named = [(name, sbatch_quoted(getattr(needed, name))) for name in names if getattr(needed, name)]
    if section.qos:
        named.append(("qos", sbatch_quoted(section.qos)))
    return _template().render(
        title=f"{_one_line(task.name)}, by pivotopd {__version__}",
        name=sbatch_quoted(_one_line(task.name)),
        workdir=sbatch_quoted(workdir),
        output=sbatch_quoted(folder.replace("%", "%%") + "/" + LOG),
        needed=needed,
        memory_mb=math.ceil(needed.memory_gb * 1024),
        section=section,
        named=named,
        options=[_sbatch_option(option) for option in section.options],
        folder=shlex.quote(folder),
        setup=section.setup.strip("\n"),
        distributed=needed.processes > 1,
        command=[shlex.quote(word) for word in command_of(task, section, folder=folder, workdir=workdir)],
    )


def command_of(task: Task, section: SlurmSection, *, folder: str, workdir: str) -> list[str]:
    """Return the command line of a task: Python, inside a container and under srun where asked for."""
    needed = task.resources
    python = section.python or ("python" if needed.image else sys.executable)
    command = [python, *task.arguments]
    mounts = list(dict.fromkeys([workdir, folder, *section.mounts]))
    if needed.image:
        for path in mounts:
            _refuse_path(path, marks=",:")
    if needed.image and section.container == "apptainer":
        command = [*_apptainer(needed, mounts, workdir), needed.image, *command]
    elif needed.image and section.container == "enroot":
        command = [*_enroot(section, mounts), needed.image, *command]
    if needed.processes > 1:
        command = ["bash", "-c", _RANK, "rank", *command]
    if needed.processes > 1 or (needed.image and section.container == "pyxis"):
        command = [*_srun(needed, section, mounts, workdir), *command]
    return command


def _srun(needed: Needed, section: SlurmSection, mounts: list[str], workdir: str) -> list[str]:
    # A process that ends leaves the others a minute, so that all of them can stop at a safe point.
    command = ["srun", f"--nodes={needed.nodes}", f"--ntasks={needed.processes}", "--wait=60"]
    command += [f"--cpus-per-task={needed.cpus}"]
    if needed.image and section.container == "pyxis":
        command += [f"--container-image={needed.image}", f"--container-workdir={workdir}"]
        command += ["--container-mounts=" + ",".join(f"{path}:{path}" for path in mounts)]
    return command


def _apptainer(needed: Needed, mounts: list[str], workdir: str) -> list[str]:
    command = ["apptainer", "exec", "--pwd", workdir]
    if needed.gpus:
        command.append("--nv")
    for path in mounts:
        command += ["--bind", path]
    return command


def _enroot(section: SlurmSection, mounts: list[str]) -> list[str]:
    command = ["enroot", "start"]
    for path in mounts:
        command += ["--mount", f"{path}:{path}"]
    for name in dict.fromkeys([*section.variables, *_RANK_VARIABLES]):
        command += ["--env", name]
    return command


def sbatch_quoted(value: str) -> str:
    """Quote a value for a ``#SBATCH`` line."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _sbatch_option(option: str) -> str:
    name, separator, value = option.partition("=")
    return name + separator + sbatch_quoted(value) if separator else name


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _refuse_path(path: str, marks: str = "\\") -> None:
    """Refuse names that sbatch or a container's options would take apart."""
    if not path.startswith("/") or not path.isprintable() or any(mark in path for mark in marks):
        raise ConfigError(
            f"{path!r} cannot be a folder of this job: wanted is an absolute path without control characters"
            f" and {' or '.join(marks)}",
            where="the run's root, launch.slurm.folder, or the current folder",
            mend="choose another folder",
        )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701 - a shell script, no page: every value is quoted for its place
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("slurm_job.sh.j2")
