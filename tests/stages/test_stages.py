"""Each stage alone, from stored inputs: what it writes and counts, what it finds again, what it refuses."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from pivotopd.artifacts import Artifact
from pivotopd.errors import ArtifactError, ConfigError, NothingToTrainOn, NumericsError, PivotError
from pivotopd.learner import Learner, StepReport, TrainingRow
from pivotopd.manifest import File, Manifest, Part, content_digest
from pivotopd.models.checkpoint import weights_digest
from pivotopd.records import Advantage, Chain, Episode, Label, Signal, Turn, Update
from stages.command import rerun_jobs
from stages.metrics import metrics_of
from stages.runner import planned
from stages.runs import open_run, rerun
from tests.small_student import small_config
from tests.stages.conftest import StoredRun

ROOT = Path(__file__).resolve().parents[2]
LOOP = ("rollout", "label", "recover", "update")


def command(stage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"stages.{stage}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


# --------------------------------------------------------------------------- what comes out


@pytest.mark.parametrize("iteration", [0, 1])
def test_a_rollout_counts_what_it_played(finished: StoredRun, iteration: int) -> None:
    artifact = finished.artifact("rollout", iteration)
    episodes, turns, counts = artifact.rows(Episode), artifact.rows(Turn), artifact.manifest.counts
    assert len(episodes) == 2 * 3 == counts["episodes"] == counts["env_resets"]
    assert Counter(turn.episode for turn in turns) == {one.episode: one.turns for one in episodes}
    assert counts["env_steps"] == counts["prompts"] == len(turns)
    assert counts["prompt_tokens"] == sum(len(turn.prompt_ids) for turn in turns)
    assert counts["generated_tokens"] == sum(len(turn.response_ids) for turn in turns)
    assert counts["scored_tokens"] == 0
    policy = finished.artifact("rollout", 0).manifest.inputs["policy"]
    expected = policy if iteration == 0 else finished.artifact("update", 0).digest
    assert {one.policy for one in episodes} == {artifact.manifest.inputs["policy"]} == {expected}
    assert metrics_of(artifact)["rollout/success"] == sum(one.won for one in episodes) / len(episodes)


@pytest.mark.parametrize("iteration", [0, 1])
def test_labels_are_of_the_rollout(finished: StoredRun, iteration: int) -> None:
    artifact = finished.artifact("label", iteration)
    labels, counts = artifact.rows(Label), artifact.manifest.counts
    turns = {(turn.episode, turn.turn): turn for turn in finished.artifact("rollout", iteration).rows(Turn)}
    assert counts["labels"] == len(labels)
    assert counts["pivotal"] == sum(label.pivotal for label in labels)
    assert counts["oracle_searches"] > 0
    for label in labels:
        assert label.student_action == turns[label.episode, label.turn].action


@pytest.mark.parametrize("iteration", [0, 1])
def test_recoveries_leave_the_rollout_after_pivotal_turns(finished: StoredRun, iteration: int) -> None:
    artifact = finished.artifact("recover", iteration)
    chains, rows, counts = artifact.rows(Chain), artifact.rows(Turn), artifact.manifest.counts
    pivotal = {
        (one.episode, one.turn) for one in finished.artifact("label", iteration).rows(Label) if one.pivotal
    }
    assert {(one.episode, one.pivot_turn) for one in chains} == pivotal
    assert (
        counts["chains"] == len(chains) == sum(n for key, n in counts.items() if key.startswith("stopped_"))
    )
    assert counts["recovery_rows"] == len(rows) == sum(one.accepted for one in chains)
    assert all(row.turn == (row.pivot_turn or 0) + 1 and row.depth == 1 for row in rows)
    assert counts["prompts"] >= len(rows)


@pytest.mark.parametrize("iteration", [0, 1])
def test_an_update_accounts_for_every_row_and_token(finished: StoredRun, iteration: int) -> None:
    artifact, counts = (
        finished.artifact("update", iteration),
        finished.artifact("update", iteration).manifest.counts,
    )
    rollout = finished.artifact("rollout", iteration).rows(Turn)
    recovery = finished.artifact("recover", iteration).rows(Turn)
    signals, advantages = artifact.rows(Signal), artifact.rows(Advantage)
    steps = artifact.rows(Update)
    keys = [(row.episode, row.turn, row.source, row.pivot_turn) for row in rollout + recovery]
    assert [(one.episode, one.turn, one.source, one.pivot_turn) for one in signals] == keys
    assert [(one.episode, one.turn, one.source, one.pivot_turn) for one in advantages] == keys
    assert counts["rows"] == len(keys) == sum(step.rows for step in steps)
    assert counts["recovery_rows"] == len(recovery) == sum(step.recovery_rows for step in steps)
    assert counts["optimizer_steps"] == -(-len(keys) // 32) == len(steps)
    trained = sum(sum(one.mask) for one in advantages)
    assert counts["trained_tokens"] == trained == sum(step.tokens for step in steps)
    tokens = sum(len(row.response_ids) for row in rollout + recovery)
    assert counts["dropped_tokens"] == tokens - trained
    hinted = sum(len(one.hinted_nats) for one in signals if one.hinted_nats is not None)
    assert counts["scored_tokens"] == tokens * (1 if iteration == 0 else 2) + hinted, "reference included"


def test_an_update_leaves_a_checkpoint_that_differs_from_its_policy(
    finished: StoredRun, student: Path
) -> None:
    digests = [weights_digest(student)]
    for iteration in (0, 1):
        checkpoint, update = finished.checkpoint(iteration), finished.artifact("update", iteration)
        digests.append(weights_digest(checkpoint.local_path()))
        assert digests[-1] == checkpoint.manifest.notes["weights"] == update.manifest.notes["weights"]
        assert checkpoint.digest == update.digest
    assert len(set(digests)) == 3


def test_an_evaluation_replays_the_mistakes_of_the_start(finished: StoredRun) -> None:
    first, last = finished.artifact("evaluate", 0), finished.artifact("evaluate", 2)
    for artifact in (first, last):
        counts, episodes = artifact.manifest.counts, artifact.rows(Episode)
        assert counts["episodes"] == len(episodes) == 1
        assert counts["won"] == sum(one.won for one in episodes)
        assert json.loads(artifact.log("panel.json"))["tasks"][0]["id"] == episodes[0].task
    assert first.manifest.counts["mistakes"] == last.manifest.counts["mistakes"]
    assert last.manifest.inputs["start"] == first.digest
    assert [one.seed for one in first.rows(Episode)] == [one.seed for one in last.rows(Episode)]


# --------------------------------------------------------------------------- finding again


def test_nothing_is_done_twice(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    before = run.files()
    said = run.run("rollout", 0, follow=True) + run.run("evaluate", 2)
    assert sum(" cached " in line for line in said) == len(LOOP) + 1
    assert run.files() == before


def test_a_dry_run_names_the_work_and_does_none(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    before = run.files()
    work, jobs = rerun_jobs(run.uri, "label", 0, ["recovery.depth=2"], follow=True)
    said = [planned(work, job) for job in jobs]
    assert [line.split()[0] for line in said] == ["label", "recover", "update"]
    assert [line[19:].split(f"{run.root}")[0].strip() for line in said] == [
        "cached",
        "would run",
        "would run",
    ]
    assert run.files() == before


def test_another_recovery_depth_redoes_recover_and_update_beside_the_old_ones(
    copy: Callable[[], StoredRun],
) -> None:
    run = copy()
    before = run.files()
    said = run.run("recover", 0, "recovery.depth=2", follow=True)
    assert [line.split()[:3:2] for line in said if not line.startswith(" ")] == [
        ["recover", "done"],
        ["update", "done"],
    ]
    after = run.files()
    assert {name: after[name] for name in before} == before, "the old artifacts are as they were"
    new = [name.removeprefix(run.uri) for name in after.keys() - before.keys()]
    assert {name.split("/")[1 if "checkpoints" in name else 3] for name in new} == {
        "recover",
        "update",
        "checkpoints",
    }
    deeper = run.artifact("recover", 0, "recovery.depth=2")
    assert deeper.manifest.inputs == run.artifact("recover", 0).manifest.inputs
    assert {row.depth for row in deeper.rows(Turn)} <= {1, 2}


def test_a_stage_alone_in_a_new_process_gives_the_same_bytes(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    before = {stage: run.artifact(stage, 1) for stage in ("recover", "update")}
    checkpoint = run.checkpoint(1)
    for artifact in (*before.values(), checkpoint):
        shutil.rmtree(artifact.uri)
    for stage in before:
        done = command(stage, "--run", run.uri, "--iteration", "1")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.startswith(f"{stage} 0001"), done.stdout
    for stage, artifact in before.items():
        assert run.artifact(stage, 1).manifest.content_digest == artifact.manifest.content_digest
    assert run.checkpoint(1).manifest.notes == checkpoint.manifest.notes


# --------------------------------------------------------------------------- refusals


def test_the_command_ends_with_the_documented_code_and_says_what_is_missing(
    student: Path, tmp_path: Path
) -> None:
    open_run(small_config(tmp_path, student))
    done = command("label", "--run", f"{tmp_path}/small", "--iteration", "0")
    assert done.returncode == 3
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "error: the artifact does not exist"
    assert "/iterations/0000/rollout/" in lines[1]
    assert "run the stage that writes it first" in lines[2]
    assert len(lines) == 3


def test_a_later_iteration_wants_the_checkpoint_before_it(student: Path, tmp_path: Path) -> None:
    open_run(small_config(tmp_path, student))
    with pytest.raises(ArtifactError, match="does not exist") as caught:
        StoredRun(tmp_path).run("rollout", 1)
    assert "/checkpoints/" in str(caught.value)


@pytest.mark.parametrize(
    ("stage", "iteration", "overrides", "message"),
    [
        ("pray", 0, (), "no stage 'pray'"),
        ("rollout", None, (), "belongs to an iteration"),
        ("evaluate", None, (), "belongs to an iteration"),
        ("rollout", 2, (), "has 2 iterations"),
        ("evaluate", 3, (), "has 2 iterations"),
        ("update", 10**30, ("iterations=9",), "has 9 iterations"),
        ("label", 0, ("method=grpo",), "has no stage label"),
        ("recover", 0, ("recovery.depth=0",), "has no stage recover"),
        ("update", 0, ("recovery.dept=0",), "did you mean 'depth'"),
    ],
)
def test_what_cannot_be_asked_for(
    finished: StoredRun, stage: str, iteration: int | None, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        finished.run(stage, iteration, *overrides)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"name": name}
            for name in ("", " ", "..", ".x", "shared", "a/b", "a\\b", "a:b", "a\nb", "\ud800", 101 * "a")
        ),
        *({"root": root} for root in ("", " ", "a\0b", "\ud800")),
    ],
)
def test_a_name_or_root_that_no_folder_can_have(changes: dict[str, str], student: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a") as caught:
        open_run(small_config(Path("unused"), student).model_copy(update=changes))
    assert caught.value.where in changes


def test_prompts_that_never_fit_are_said_and_nothing_is_published(student: Path, tmp_path: Path) -> None:
    open_run(small_config(tmp_path, student, rollout__prompt_tokens=3))
    with pytest.raises(ConfigError, match="longer than 3 tokens") as caught:
        StoredRun(tmp_path).run("rollout", 0)
    assert caught.value.where == "rollout.prompt_tokens"
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize("text", [b"seed: [", b"\xff\xfe", b"3", b"", b"nosuch: 1"])
def test_a_run_whose_configuration_is_damaged(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.yaml").write_bytes(text)
    with pytest.raises(PivotError) as caught:
        StoredRun(tmp_path).run("rollout", 0)
    assert "config.yaml" in str(caught.value.where)
    assert caught.value.mend


def test_a_run_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no run at this address"):
        StoredRun(tmp_path).run("rollout", 0)


Damage = Callable[[Artifact, Path], None]


def truncate(_: Artifact, part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-9])


def flip(_: Artifact, part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))


def remove(_: Artifact, part: Path) -> None:
    part.unlink()


def newer(artifact: Artifact, part: Path) -> None:
    table = pq.read_table(part)
    metadata = dict(table.schema.metadata) | {b"version": b"99"}
    rewrite(artifact, part, table.replace_schema_metadata(metadata))


def newer_in_manifest(artifact: Artifact, part: Path) -> None:
    rewrite(artifact, part, pq.read_table(part), version=99)


def extra_column(artifact: Artifact, part: Path) -> None:
    table = pq.read_table(part)
    rewrite(artifact, part, table.append_column("mood", pa.array(["calm"] * table.num_rows)))


def rewrite(artifact: Artifact, part: Path, table: pa.Table, **changes: Any) -> None:
    """Write another table as the part, with a manifest that fits it."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    part.write_bytes(sink.getvalue())
    replace_in_manifest(artifact, part, changes)


def replace_in_manifest(artifact: Artifact, file: Path, changes: Mapping[str, Any]) -> None:
    folder, data = Path(artifact.uri), file.read_bytes()
    name = file.relative_to(folder).as_posix()

    def fitted(stored: Part | File) -> Any:
        if stored.path != name:
            return stored
        new = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
        return stored.model_copy(update=new)

    old = Manifest.from_json((folder / "manifest.json").read_bytes(), name)
    parts, files = [fitted(one) for one in old.parts], [fitted(one) for one in old.files]
    manifest = old.model_copy(
        update={
            "parts": tuple(parts),
            "files": tuple(files),
            "content_digest": content_digest(parts, files, old.counts, old.varying),
        }
    )
    (folder / "manifest.json").write_text(manifest.to_json())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "its manifest says"),
        (flip, "hash is not its manifest's"),
        (remove, "is missing"),
        (newer, "schema version 99, this program reads"),
        (newer_in_manifest, "schema version 99, this program reads"),
        (extra_column, r"extra \['mood'\]"),
    ],
)
def test_a_damaged_input_is_refused_and_nothing_is_written(
    copy: Callable[[], StoredRun], damage: Damage, message: str
) -> None:
    run = copy()
    rollout = run.artifact("rollout", 0)
    shutil.rmtree(run.artifact("label", 0).uri)
    (part,) = Path(rollout.uri).glob("turns-*.parquet")
    damage(rollout, part)
    before = run.files()
    with pytest.raises(ArtifactError, match=message) as caught:
        run.run("label", 0)
    assert str(part) in str(caught.value)
    assert caught.value.exit_code == 3
    assert run.files() == before


def test_nothing_to_train_on_leaves_no_checkpoint(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    alone = ("method=grpo", "rollout.group_size=1", "update.invalid_penalty=0", "environment.max_turns=1")
    checkpoints = sorted((Path(run.uri) / "checkpoints").iterdir())
    with pytest.raises(NothingToTrainOn) as caught:
        run.run("rollout", 0, *alone, follow=True)
    assert caught.value.exit_code == 6
    assert sorted((Path(run.uri) / "checkpoints").iterdir()) == checkpoints
    assert len(list((Path(run.uri) / "iterations/0000/update").iterdir())) == 1


def test_idle_iterations_pass_where_they_may(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    lost = ("method=grpo", "update.invalid_penalty=0", "environment.max_turns=1", "update.idle_limit=1")
    run.run("rollout", 0, *lost, follow=True)
    work, plan = rerun(run.uri, "rollout", 0, list(lost))
    updated = work.find(plan.job("update", 0))
    assert updated is not None
    counts = updated.manifest.counts
    assert (counts["signal_rows"], counts["idle"]) == (0, 1)
    assert counts["optimizer_steps"] > 0


def spoil(weights: Path) -> None:
    tensors = load_file(weights)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    tensors[name] = tensors[name].copy()
    tensors[name][0, 0] = np.nan
    save_file(tensors, weights, metadata={"format": "pt"})


def test_a_checkpoint_that_is_not_finite_is_refused(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    checkpoint = run.checkpoint(0)
    shutil.rmtree(run.artifact("rollout", 1).uri)
    weights = checkpoint.local_path() / "model.safetensors"
    spoil(weights)
    with pytest.raises(ArtifactError, match="manifest"):
        run.run("rollout", 1)
    replace_in_manifest(checkpoint, weights, {})
    with pytest.raises(NumericsError, match="not finite") as caught:
        run.run("rollout", 1)
    assert caught.value.exit_code == 7
    assert str(weights.parent) in str(caught.value)


def test_an_update_that_ends_not_finite_writes_no_checkpoint(
    copy: Callable[[], StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, update = copy(), Learner.update

    def overflow(learner: Learner, rows: Sequence[TrainingRow], seed: int) -> list[StepReport]:
        reports = update(learner, rows, seed)
        next(iter(learner._policy.model.parameters())).data[0, 0] = float("inf")
        return reports

    monkeypatch.setattr(Learner, "update", overflow)
    before = run.files()
    with pytest.raises(NumericsError, match="not finite") as caught:
        run.run("update", 1, "update.learning_rate=0.5")
    assert "learning_rate" in str(caught.value.mend)
    assert run.files() == before


def test_a_start_that_is_not_finite_is_refused(student: Path, tmp_path: Path) -> None:
    shutil.copytree(student, tmp_path / "student")
    spoil(tmp_path / "student" / "model.safetensors")
    open_run(small_config(tmp_path / "root", tmp_path / "student"))
    with pytest.raises(NumericsError, match="not finite"):
        StoredRun(tmp_path / "root").run("rollout", 0)


def test_a_checkpoint_without_tokenizer_is_refused(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    shutil.rmtree(run.artifact("rollout", 1).uri)
    (run.checkpoint(0).local_path() / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match="file is missing") as caught:
        run.run("rollout", 1)
    assert "tokenizer.json" in str(caught.value)


def test_a_start_without_tokenizer_is_refused(student: Path, tmp_path: Path) -> None:
    shutil.copytree(student, tmp_path / "student")
    (tmp_path / "student" / "tokenizer.json").unlink()
    with pytest.raises(ArtifactError, match="no tokenizer"):
        open_run(small_config(tmp_path / "root", tmp_path / "student"))
    assert not (tmp_path / "root").exists()


def test_games_that_changed_since_the_rollout_are_noticed(copy: Callable[[], StoredRun]) -> None:
    run = copy()
    shutil.rmtree(run.artifact("label", 0).uri)
    with pytest.raises(ArtifactError, match=r"task .* now"):
        run.run("label", 0, "environment.generated.seed=3")
