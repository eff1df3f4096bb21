"""The batch script: what it asks for, and that bash and sbatch read every hostile name as it was given."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotopd.errors import ConfigError
from pivotopd.launch.base import Needed, Resources, Task, needed
from pivotopd.launch.section import LaunchSection
from pivotopd.launch.slurm_script import command_of, render_script, sbatch_quoted
from pivotopd.launch.slurm_section import SlurmSection

HOSTILE = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="/\\"), min_size=1, max_size=30
).filter(str.isprintable)


def task(*arguments: str, **resources: object) -> Task:
    return Task("recover-0003", "ab" * 32, arguments or ("-m", "x"), Needed(**resources))  # type: ignore[arg-type]


def script(asked: Task, section: SlurmSection | None = None, folder: str = "/runs/a/jobs/x/001") -> str:
    return render_script(asked, section or SlurmSection(), folder=folder, workdir="/work dir")


def headers(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_what_is_asked_for() -> None:
    asked = task(gpus=8, gpu_type="h100", cpus=4, memory_gb=1.5, time_limit_min=90, partition="gpu,long",
                 account="lab", constraint="a100&ib")  # fmt: skip
    section = SlurmSection(qos="high", options=("--exclusive", "--licenses=x y:1"), stop_ahead_s=300)
    assert headers(script(asked, section)) == [
        '--job-name="recover-0003"',
        '--chdir="/work dir"',
        '--output="/runs/a/jobs/x/001/log.txt"',
        "--open-mode=append",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--mem=1536M",
        "--time=90",
        "--signal=B:USR1@300",
        "--requeue",
        "--gres=gpu:h100:8",
        '--partition="gpu,long"',
        '--account="lab"',
        '--constraint="a100&ib"',
        '--qos="high"',
        "--exclusive",
        '--licenses="x y:1"',
    ]


def test_memory_is_always_asked_for_and_nothing_else_that_was_not_said() -> None:
    names = [line.partition("=")[0] for line in headers(script(task()))]
    assert "--mem" in names
    assert not {"--gres", "--partition", "--account", "--constraint", "--qos"} & set(names)


def test_a_stage_fills_what_it_leaves_open_from_what_holds_for_all() -> None:
    section = LaunchSection(
        resources=Resources(gpus=1, partition="gpu", memory_gb=32), stages={"update": Resources(gpus=8)}
    )
    assert section.needed("update") == Needed(gpus=8, partition="gpu", memory_gb=32)
    assert section.needed("rollout") == section.needed() == Needed(gpus=1, partition="gpu", memory_gb=32)
    assert needed(Resources(gpus=0), Resources(gpus=4)).gpus == 0, "nothing is not the same as unsaid"
    assert set(Needed.__dataclass_fields__) == set(Resources.model_fields)


@pytest.mark.parametrize(
    "value", ["", "a b", "-x", "--gres=gpu:1", "a\nb", "a;b", "$(id)", "a'b", 'a"b', "é"]
)
def test_a_partition_is_one_word(value: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        Resources(partition=value)


@pytest.mark.parametrize("option", ["-x", "exclusive", "--a b", "--a\n#SBATCH --b", "--a=b\n", "--"])
def test_an_option_is_one_option(option: str) -> None:
    with pytest.raises(ValueError, match="an option of sbatch"):
        SlurmSection(options=(option,))


@pytest.mark.parametrize("folder", ["relative", "/a\\b", "/a\nb", "/a\x00"])
def test_folders_that_cannot_stand_in_a_script_are_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a folder of this job"):
        script(task(), folder=folder)


def test_percent_signs_of_a_folder_are_no_patterns_of_the_log() -> None:
    assert '--output="/r/100%%j/log.txt"' in headers(script(task(), folder="/r/100%j"))


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40))
def test_quotes_for_sbatch_can_be_taken_back(text: str) -> None:
    quoted = sbatch_quoted(text)
    assert quoted[0] == quoted[-1] == '"'
    read, inner = "", iter(quoted[1:-1])
    for character in inner:  # as sbatch reads inside double quotes
        assert character != '"'
        read += next(inner) if character == "\\" else character
    assert read == text


@settings(max_examples=8, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20),
                min_size=1, max_size=4), HOSTILE)  # fmt: skip
def test_bash_runs_the_command_as_given_wherever_it_lies(words: list[str], name: str) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / f"x{name}"
        folder.mkdir()
        out = folder / "out"
        program = "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))"
        text = script(task("-c", program, str(out), *words), folder=str(folder))
        done = _run(folder, text)
        assert done.returncode == 0, done.stderr
        assert out.read_text() == repr(words)
        assert (folder / "exit_code").read_text() == "0\n"
        assert (folder / "started").read_text() == "17\n"


@pytest.mark.parametrize(("code", "left"), [(0, "0"), (3, "3"), (75, "75")])
def test_the_exit_code_is_left_and_passed_on(tmp_path: Path, code: int, left: str) -> None:
    (tmp_path / "exit_code").write_text("of an earlier start")
    done = _run(tmp_path, script(task("-c", f"raise SystemExit({code})"), folder=str(tmp_path)))
    assert done.returncode == code
    assert (tmp_path / "exit_code").read_text() == f"{left}\n"


STOPS = "import os, signal, sys, time; os.kill(os.getppid(), signal.SIGUSR1); "


@pytest.mark.parametrize(
    ("program", "restarts", "requeued", "left"),
    [
        (STOPS + "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75)); time.sleep(60)", 0, True, None),
        (STOPS + "time.sleep(60)", 0, True, None),  # before the command can catch it
        (STOPS + "time.sleep(60)", 2, False, "75"),  # as often as it may
        ("import signal, os, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3)); "
         "os.kill(os.getppid(), signal.SIGUSR1); time.sleep(60)", 0, False, "3"),  # an error of its own
    ],
)  # fmt: skip
def test_stopped_for_its_time_limit_a_job_is_requeued(
    tmp_path: Path, program: str, restarts: int, requeued: bool, left: str | None
) -> None:
    section = SlurmSection(requeues=2)
    done = _run(
        tmp_path, script(task("-c", program), section, str(tmp_path)), SLURM_RESTART_COUNT=str(restarts)
    )
    assert (tmp_path / "scontrol").exists() == requeued
    if requeued:
        assert (tmp_path / "scontrol").read_text() == "requeue 17\n"
    assert done.returncode == (75 if left is None else int(left))
    assert (tmp_path / "exit_code").exists() == (left is not None)
    assert left is None or (tmp_path / "exit_code").read_text() == f"{left}\n"


def test_a_controller_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    done = _run(tmp_path, script(task("-c", STOPS + "time.sleep(60)"), folder=str(tmp_path)), REFUSED="2")
    assert (tmp_path / "scontrol").read_text() == "requeue 17\n" * 3
    assert done.returncode == 75
    assert not (tmp_path / "exit_code").exists()


def test_where_requeueing_is_forbidden_the_exit_code_is_left(tmp_path: Path) -> None:
    done = _run(tmp_path, script(task("-c", STOPS + "time.sleep(60)"), folder=str(tmp_path)), REFUSED="9")
    assert done.returncode == 75
    assert (tmp_path / "exit_code").read_text() == "75\n"


def test_a_signal_before_the_command_has_started_reaches_it(tmp_path: Path) -> None:
    """As between bash's fork and its next word, where no name of the command is known."""
    text = script(task("-c", "import time; time.sleep(60)"), folder=str(tmp_path))
    starts = '  "${command[@]}" &\n'
    assert text.count(starts) == 1
    done = _run(tmp_path, text.replace(starts, starts + "  kill -USR1 $$\n"))
    assert done.returncode == 75
    assert (tmp_path / "scontrol").read_text() == "requeue 17\n"


def test_lines_of_setup_come_before_the_command(tmp_path: Path) -> None:
    section = SlurmSection(setup="export SEEN='a b'\n", python=sys.executable)
    program = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(os.environ['SEEN'])"
    _run(tmp_path, script(task("-c", program), section, str(tmp_path)))
    assert (tmp_path / "seen").read_text() == "a b"


def test_containers() -> None:
    def command(container: str, **resources: object) -> list[str]:
        section = SlurmSection(container=container, mounts=("/data",), variables=("KEY",))  # type: ignore[arg-type]
        asked = task("-m", "x", image="/images/p.sif", **resources)
        return command_of(asked, section, folder="/f", workdir="/w")

    assert command("apptainer", gpus=1) == [
        "apptainer", "exec", "--pwd", "/w", "--nv", "--bind", "/w", "--bind", "/f", "--bind", "/data",
        "/images/p.sif", "python", "-m", "x",
    ]  # fmt: skip
    assert "--nv" not in command("apptainer")
    pyxis = command("pyxis")
    assert pyxis[0] == "srun"
    assert "--container-image=/images/p.sif" in pyxis
    assert "--container-mounts=/w:/w,/f:/f,/data:/data" in pyxis
    assert pyxis[-3:] == ["python", "-m", "x"]
    enroot = command("enroot")
    assert enroot[:2] == ["enroot", "start"]
    assert enroot[enroot.index("--env") + 1] == "KEY"
    assert enroot[-4:] == ["/images/p.sif", "python", "-m", "x"]


def test_several_processes_run_under_srun_and_know_their_rank() -> None:
    text = script(task(nodes=2, ranks=4, gpus=4))
    assert "--nodes=2" in headers(text)
    assert "--ntasks-per-node=4" in headers(text)
    assert "\n  srun\n  --nodes=2\n  --ntasks=8\n" in text
    for name in ("RANK=", "LOCAL_RANK=", "WORLD_SIZE=", "MASTER_ADDR=", "MASTER_PORT="):
        assert name in text
    assert "MASTER_ADDR" not in script(task())


def _run(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script as SLURM would, with an scontrol that notes its arguments, and refuses at first."""
    tools = folder / "bin"
    tools.mkdir()
    notes = 'printf "%s\\n" "$*" >>"$NOTES/scontrol"\n[[ $(wc -l <"$NOTES/scontrol") -gt ${REFUSED:-0} ]]\n'
    (tools / "scontrol").write_text(f"#!/bin/bash\n{notes}")
    (tools / "scontrol").chmod(0o755)
    (folder / "job.sh").write_text(text, encoding="utf-8")
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "17", "NOTES": str(folder), **variables}
    if ":" in str(tools):
        environment["PATH"] = "/usr/bin:/bin"
    return subprocess.run(
        ["bash", str(folder / "job.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
