"""Runs whose responses come from policy servers: the same artifacts, whichever computed what and died."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pivotopd.artifacts import Artifact
from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError, EngineFault
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.checkpoint import load_policy
from pivotopd.models.in_flight import InFlight
from pivotopd.models.transformers_engine import TransformersEngine
from pivotopd.services.client import RemoteEngine
from pivotopd.services.pool import EnginePool
from stages.runner import perform
from stages.runs import open_run
from tests.policy_server import ServerProcess
from tests.small_student import small_config
from tests.stages.conftest import StoredRun

pytestmark = pytest.mark.slow
CALLS = 15
"""Batches or landings after which servers are killed: eight are the parity probe, then a rollout goes on."""


@pytest.fixture(scope="module")
def servers(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Five servers of the start policy; tests kill some of them."""
    home = tmp_path_factory.mktemp("servers")
    batches = ("update.micro_batch_tokens=1024",)
    found = [ServerProcess(str(student), home, batches) for _ in range(5)]
    try:
        for server in found:
            server.wait()
        yield found
    finally:
        for server in found:
            server.kill()


def rollout(config: RunConfig) -> Artifact:
    work, plan = open_run(config)
    with closing(work):
        done = perform(work, plan.job("rollout", 0))
    assert not done.cached
    return done.artifact


def content(artifact: Artifact) -> tuple[object, ...]:
    manifest = artifact.manifest
    return manifest.digest, manifest.content_digest, tuple(part.sha256 for part in manifest.parts)


def served(root: Path, student: Path, *servers: ServerProcess) -> RunConfig:
    """Return a run over servers that are given one response at a time, as a batch of one is."""
    return small_config(root, student, engine={"urls": [server.url for server in servers], "concurrency": 1})


@pytest.fixture(scope="module")
def alone(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The rollout of this process's own engine, one response at a time."""
    return rollout(small_config(tmp_path_factory.mktemp("alone"), student, rollout__batch_episodes=1))


def test_a_run_over_one_server_is_the_run_in_process(
    finished: StoredRun, servers: list[ServerProcess], student: Path, tmp_path: Path
) -> None:
    last = servers[3]
    run = StoredRun(tmp_path / "root")
    open_run(small_config(run.root, student, engine={"urls": [last.url]}))
    run.run("evaluate", 0)
    run.run("rollout", 0, follow=True)
    run.run("rollout", 1)
    for stage, iteration in (("evaluate", 0), ("rollout", 0), ("label", 0), ("recover", 0), ("rollout", 1)):
        ours, theirs = run.artifact(stage, iteration), finished.artifact(stage, iteration)
        assert content(ours) == content(theirs), (stage, iteration)
        assert ours.manifest.counts["engine_starts"] == 0
    with closing(RemoteEngine(last.url)) as remote:
        assert remote.policy == run.checkpoint(0).manifest.digest
    last.process.send_signal(signal.SIGTERM)
    assert last.process.wait(timeout=60) == 0
    assert last.process.stdout is not None
    assert last.process.stdout.read() == "ended\n"
    with pytest.raises(EngineFault, match="cannot be reached"):
        RemoteEngine(last.url)


def test_two_servers_give_the_rollout_of_one_process(
    alone: Artifact, servers: list[ServerProcess], student: Path, tmp_path: Path
) -> None:
    assert content(rollout(served(tmp_path, student, *servers[:2]))) == content(alone)


@dataclass
class Killer:
    """Kills servers after some calls of a rollout."""

    doomed: list[ServerProcess]
    calls: int = 0

    def count(self) -> None:
        self.calls += 1
        if self.calls == CALLS:
            for server in self.doomed:
                server.kill()


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    found, ask = Killer([]), RemoteEngine._ask

    def counted(self: RemoteEngine, call: str, message: bytes, *, checked: bool = True) -> bytes:
        if call == "generate" or "/landings/" in call:
            found.count()
        return ask(self, call, message, checked=checked)

    monkeypatch.setattr(RemoteEngine, "_ask", counted)
    return found


def flown(flight: InFlight, requests: Sequence[Request], after: Callable[[int], None]) -> list[list[int]]:
    """Return the responses to requests, of which half is sent when the first ones have landed."""
    found: dict[int, Completion] = {}
    half = len(requests) // 2
    flight.send(dict(enumerate(requests[:half])))
    found |= flight.land()
    after(len(found))
    flight.send(dict(enumerate(requests[half:], half)))
    while landed := flight.land():
        found |= landed
    flight.close()
    return [found[key].response_ids.tolist() for key in range(len(requests))]


def test_requests_in_flight_land_as_one_engine_answers_them_also_when_a_server_dies(
    servers: list[ServerProcess], student: Path
) -> None:
    staying, doomed = servers[2], servers[4]
    policy = load_policy(student)
    sampling, rng = Sampling(1.0, 24), np.random.default_rng(0)
    requests = [Request(rng.integers(3, len(policy.tokenizer), size).tolist(), size) for size in range(5, 25)]
    # one prompt at a time, as the shares of a pool and of a flight differ in the last bits of a draw
    wanted = [
        TransformersEngine(policy, max_batch=1).generate([one], sampling)[0].response_ids.tolist()
        for one in requests
    ]
    stray = Request([5, len(policy.tokenizer) + 10**6], 0)
    with closing(RemoteEngine(staying.url)) as one, closing(RemoteEngine(doomed.url)) as other:
        with pytest.raises(ConfigError, match="is not in the vocabulary") as refused:
            one.generate([requests[0], stray], sampling)
        assert refused.value.where == f"{staying.url}: request 1"
        with pytest.raises(ConfigError, match="is not in the vocabulary"):
            flown(one.begin(sampling), [*requests, stray], lambda landed: None)
        assert flown(EnginePool({"one": one}, 1).begin(sampling), requests, lambda landed: None) == wanted
        pool = EnginePool({"one": one, "other": other}, 1)
        assert flown(pool.begin(sampling), requests, lambda landed: None) == wanted
        assert min(one.counts.prompts - 20, other.counts.prompts) > 5
        before = other.counts.prompts
        assert flown(pool.begin(sampling), requests, lambda landed: doomed.kill()) == wanted
        assert other.counts.prompts < before + 5
        whole = one.begin(sampling)
        assert sum(a == b for a, b in zip(flown(whole, requests, lambda _: None), wanted, strict=True)) > 17


def test_a_server_that_dies_in_a_rollout_changes_nothing(
    alone: Artifact, servers: list[ServerProcess], killer: Killer, student: Path, tmp_path: Path
) -> None:
    one, two = servers[:2]
    killer.doomed = [one]
    assert content(rollout(served(tmp_path / "one", student, one, two))) == content(alone)
    assert killer.calls > CALLS + 5
    with pytest.raises(EngineFault, match="cannot be reached") as refused:
        rollout(served(tmp_path / "attach", student, one, two))
    assert one.url in str(refused.value)


def test_the_last_servers_death_ends_the_stage_and_leaves_nothing(
    servers: list[ServerProcess], killer: Killer, student: Path, tmp_path: Path
) -> None:
    one, two = servers[1:3]
    killer.doomed = [one, two]
    with pytest.raises(EngineFault, match="no policy engine is left") as ended:
        rollout(served(tmp_path, student, one, two))
    assert ended.value.exit_code == 10
    assert one.url in str(ended.value)
    assert two.url in str(ended.value)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"config.yaml", "templates.json"}
