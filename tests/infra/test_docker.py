"""The Dockerfile, as far as a machine without an engine can tell: lint, pins, sources, users, commands."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubernetes_tools import program

ROOT = Path(__file__).resolve().parents[2]
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


@dataclass(frozen=True)
class Step:
    """An instruction of a stage, on one line."""

    stage: str
    name: str
    text: str


def instructions() -> list[tuple[str, str]]:
    """Return name and text of all instructions, lines joined, comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, " ".join(rest.split()))
        for name, _, rest in (line.partition(" ") for line in joined.splitlines())
    ]


def steps() -> list[Step]:
    stage, found = "", []
    for name, text in instructions():
        if name == "FROM":
            stage = text.rpartition(" AS ")[2]
        found.append(Step(stage, name, text))
    return found


def lineage(target: str) -> list[Step]:
    """Return the steps of a target, those of the stages it stands on first."""
    own = [step for step in steps() if step.stage == target]
    below = own[0].text.split()[0]
    return [*(lineage(below) if any(step.stage == below for step in steps()) else []), *own]


def sources(step: Step) -> list[str]:
    """Return what a COPY takes from the context."""
    words = step.text.split()
    return [] if words[0].startswith("--from=") else words[:-1]


def context(path: Path) -> set[str]:
    """Copy the build context there, as .dockerignore leaves it, and return its top names."""
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    assert rules[0] == "*", "nothing goes along that is not named"
    for rule in rules[1:]:
        if rule.startswith("!"):
            source = ROOT / rule[1:]
            (path / rule[1:]).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                hidden = [one.removeprefix("**/") for one in rules if one.startswith("**/")]
                shutil.copytree(source, path / rule[1:], ignore=shutil.ignore_patterns(*hidden))
            else:
                shutil.copy(source, path / rule[1:])
    return {one.name for one in path.iterdir()}


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-ec", command], cwd=folder, capture_output=True, text=True, check=False
    )


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [program("hadolint"), "--no-color", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN cd /tmp && sudo ls\n", encoding="utf-8")
    done = subprocess.run([program("hadolint"), str(bad)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "DL3007" in done.stdout


def test_every_base_is_pinned_by_digest() -> None:
    arguments = dict(text.split("=", 1) for name, text in instructions() if name == "ARG" and "=" in text)
    stages = {"scratch"}
    for name, text in instructions():
        if name == "FROM":
            base, stage = text.split(" AS ")
            resolved = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], base)
            assert resolved in stages or DIGEST.search(resolved), base
            stages.add(stage)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_a_target_runs_as_an_own_user_and_holds_no_key(target: str) -> None:
    made = lineage(target)
    users = [step.text for step in made if step.name == "USER"]
    assert users == ["10001:10001"], "as launch.kubernetes.user has it"
    assert made[-1].name == "CMD"
    for step in made:
        if step.name in ("ARG", "ENV"):
            assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", step.text), step.text
        assert step.name not in ("ADD", "VOLUME")


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_code_comes_after_the_layer_of_dependencies(target: str) -> None:
    made = lineage(target)
    code = next(
        number for number, step in enumerate(made) if step.name == "COPY" and "--from=source" in step.text
    )
    install = max(number for number, step in enumerate(made) if "-r /tmp/requirements.txt" in step.text)
    assert install < code
    before = [source for step in made[:code] if step.name == "COPY" for source in sources(step)]
    assert before == [
        "pyproject.toml", "requirements.lock", "infra/dependencies.py", "infra/requirements/services.txt",
    ]  # fmt: skip


def test_all_that_is_copied_goes_along_and_nothing_else(tmp_path: Path) -> None:
    top = context(tmp_path)
    copied = {source for step in steps() if step.name == "COPY" for source in sources(step)}
    assert copied, "the parser sees the copies"
    for source in copied:
        assert (tmp_path / source).exists(), source
    assert top == {source.split("/")[0] for source in copied}
    secrets = ("*.env", "*.pem", "*.key", "kubeconfig", "*.db")
    assert not [
        one for one in tmp_path.rglob("*") if any(fnmatch.fnmatch(one.name, rule) for rule in secrets)
    ]


def test_every_command_is_a_shell_command() -> None:
    runs = [step for step in steps() if step.name == "RUN"]
    assert len(runs) >= 6
    for step in runs:
        command = re.sub(r"^(--mount=\S+ )+", "", step.text)
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (step.text, done.stderr)


def test_versions_are_installed_as_make_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m venv .venv" in makefile
    assert "-m pip install --quiet --disable-pip-version-check -c requirements.lock -e" in makefile
    for target in ("cpu", "gpu"):
        installs = [step.text for step in lineage(target) if "pip install" in step.text]
        assert any("-m venv /opt/venv" in step.text for step in lineage(target))
        for text in installs:
            assert "-c requirements.lock" in text or "--no-deps -e ." in text, text


def test_the_commands_of_the_dependencies_work_in_the_context(tmp_path: Path) -> None:
    context(tmp_path)
    version = shell("sed -n 's/^torch==//p' requirements.lock", tmp_path).stdout.strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    for target, extras in (("cpu", "kubernetes"), ("gpu", "kubernetes vllm")):
        command = f"infra/dependencies.py {extras}"
        assert any(f"python {command} >" in step.text for step in lineage(target))
        done = shell(f"{sys.executable} {command}", tmp_path)
        assert done.returncode == 0, done.stderr
        names = [re.split(r"[^\w-]", line, maxsplit=1)[0] for line in done.stdout.splitlines()]
        assert {"torch", "prefect", "prefect-kubernetes"} <= set(names)
        assert ("vllm" in names) == (target == "gpu")
        assert "pytest" not in names
    assert shell(f"{sys.executable} infra/dependencies.py no-such-extra", tmp_path).returncode == 1


def test_the_package_installs_and_starts_from_the_context(tmp_path: Path) -> None:
    made = tmp_path / "context"
    made.mkdir()
    context(made)
    build = "-m pip install --quiet --no-deps --no-build-isolation --no-index --disable-pip-version-check"
    done = shell(
        f"{sys.executable} {build} --target ../site . && {sys.executable} -m compileall -q pivotopd", made
    )
    assert done.returncode == 0, done.stderr
    installed = {str(one.relative_to(tmp_path / "site")) for one in (tmp_path / "site").rglob("*.j2")}
    templates = {str(one.relative_to(ROOT)) for one in (ROOT / "pivotopd").rglob("*.j2")}
    assert templates
    assert templates <= installed
    started = shell(f"PYTHONPATH={made} {sys.executable} -m flows.cli --version", tmp_path)
    assert re.fullmatch(r"pivotopd \d+\.\d+\.\d+\S*\n", started.stdout), started.stderr
