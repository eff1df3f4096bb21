"""The plan: a digest moves with what its stage reads and with nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pivotopd.artifacts import RunLayout
from pivotopd.config import RunConfig
from pivotopd.config_files import apply_overrides
from pivotopd.errors import ArtifactError, ConfigError
from stages.plan import LOOP, Plan
from stages.runs import named

NAMES = [(stage, iteration) for iteration in (0, 1) for stage in LOOP]


def plan_of(overrides: list[str] | None = None, base: Plan | None = None, **place: Any) -> Plan:
    config = RunConfig.model_validate(
        {"name": "run", "environment": {"prompt": "compact", "generated": {"train": 4, "valid": 2}}}
    )
    return Plan(apply_overrides(config, overrides or []), RunLayout("root", "run"), base=base, **place)


def digests(plan: Plan) -> dict[str, str]:
    found = {
        f"{stage} {iteration}": plan.job(stage, iteration).digest
        for iteration in (0, 1)
        for stage in plan.stages()
    }
    found |= {f"evaluate {iteration}": plan.evaluate(iteration).digest for iteration in (0, 1, 2)}
    return found | {"warm_start": plan.warm_start().digest}


def changed_by(*overrides: str) -> set[str]:
    before, after = digests(plan_of()), digests(plan_of(list(overrides)))
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


AFTER_UPDATE_0 = {f"{stage} 1" for stage in LOOP} | {"evaluate 1", "evaluate 2"}


def test_the_same_configuration_gives_the_same_digests() -> None:
    assert digests(plan_of()) == digests(plan_of())
    assert len(set(digests(plan_of()).values())) == 2 * len(LOOP) + 3 + 1


@pytest.mark.parametrize(
    "override",
    [
        "iterations=7",
        "evaluation.every=3",
        "threads=2",
        "update.micro_batch_tokens=99",
        "update.packing=false",
        "update.gradient_checkpointing=true",
        "update.ranks=2",
        "update.idle_limit=3",
        "rollout.batch_episodes=3",
        "root=elsewhere",
        "tracking.enabled=false",
        "tracking.experiment=other",
    ],
)
def test_where_and_how_fast_a_run_goes_changes_nothing(override: str) -> None:
    assert changed_by(override) == set()


@pytest.mark.parametrize(
    "override",
    [
        "iterations=7",
        "evaluation.every=3",
        "update.micro_batch_tokens=99",
        "update.packing=false",
        "update.gradient_checkpointing=true",
        "update.ranks=2",
        "update.idle_limit=3",
        "rollout.batch_episodes=3",
    ],
)
def test_it_also_leaves_the_name_of_a_nameless_run(override: str) -> None:
    config = RunConfig()
    assert named(apply_overrides(config, [override])).name == named(config).name
    assert named(apply_overrides(config, ["seed=1"])).name != named(config).name
    assert named(apply_overrides(config, ["update.learning_rate=1"])).name != named(config).name


def test_recovery_depth_leaves_rollout_and_label_of_its_iteration() -> None:
    assert changed_by("recovery.depth=1") == {"recover 0", "update 0"} | AFTER_UPDATE_0


@pytest.mark.parametrize(
    "override", ["method.prevention_weight=0.5", "method.recovery_clip_nats=1", "update.learning_rate=1e-3"]
)
def test_settings_of_method_and_update_leave_all_before_the_update(override: str) -> None:
    assert changed_by(override) == {"update 0"} | AFTER_UPDATE_0


@pytest.mark.parametrize("setting", ["pivot_turns=random", "hint=reflection", "recovery_kl=reverse"])
def test_ablations_of_recovery_leave_rollout_and_label(setting: str) -> None:
    assert changed_by(f"method.{setting}") == {"recover 0", "update 0"} | AFTER_UPDATE_0


@pytest.mark.parametrize("name", ["grpo", "pivotrl", "stepopsd"])
def test_methods_without_a_teacher_neither_label_nor_recover(name: str) -> None:
    assert plan_of([f"method={name}"]).stages() == ("rollout", "update")


def test_the_teacher_leaves_the_rollout() -> None:
    assert changed_by("teacher.max_candidates=1") == {"label 0", "recover 0", "update 0"} | AFTER_UPDATE_0


def test_the_evaluation_changes_no_policy() -> None:
    assert changed_by("evaluation.temperature=1") == {f"evaluate {iteration}" for iteration in (0, 1, 2)}


def test_the_seed_changes_the_whole_loop_but_neither_start_nor_its_evaluation() -> None:
    assert changed_by("seed=1") == {f"{stage} 0" for stage in LOOP} | AFTER_UPDATE_0


def test_the_warm_start_changes_everything() -> None:
    assert changed_by("warm_start.steps=9") == set(digests(plan_of()))


def test_other_games_change_what_plays_them() -> None:
    changed = changed_by("environment.generated.seed=1")
    assert changed | {"warm_start"} == set(digests(plan_of()))


@pytest.mark.parametrize("override", ["environment.generated.valid=3", "environment.holdout=3"])
def test_games_that_are_not_played_change_nothing_that_is(override: str) -> None:
    assert changed_by(override) <= {f"evaluate {iteration}" for iteration in (0, 1, 2)}


def test_training_games_leave_the_evaluation_of_the_start() -> None:
    assert "evaluate 0" not in changed_by("environment.generated.train=5")


def test_the_numeric_type_changes_all_that_a_model_does() -> None:
    assert changed_by("update.dtype=bfloat16") | {"warm_start"} == set(digests(plan_of()))


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("environment.wording=put", {"label", "recover"}),
        ("environment.engine=stock", {"label", "recover"}),
        ("update.dtype=bfloat16", {"recover", "update"}),
    ],
)
def test_a_rerun_has_no_digest_of_work_with_other_settings(override: str, stages: set[str]) -> None:
    base = plan_of()
    for stage in stages:
        rerun = plan_of([override], base, changed_from=(0, stage))
        assert rerun.job(stage, 0).digest != base.job(stage, 0).digest, stage


def test_grpo_neither_labels_nor_recovers() -> None:
    plan = plan_of(["method=grpo"])
    assert plan.stages() == ("rollout", "update")
    assert set(plan.job("update", 0).inputs) == {"policy", "reference", "rollout"}
    assert plan.job("rollout", 0).digest == plan_of().job("rollout", 0).digest, "both play the same first"


def skill_digests(method: str, *overrides: str) -> dict[str, str]:
    plan = plan_of([f"method={method}", *overrides])
    found = {"skills": plan.skills().digest} if plan.with_skills else {}
    return found | {f"{stage} {i}": plan.job(stage, i).digest for i in (0, 1) for stage in plan.stages()}


SKILLED = ("opsd", "rlsd", "sdar", "agentopsd", "skill_sd")


@pytest.mark.parametrize("override", ["skills.episodes=3", "skills.entries=3", "skills.top=3"])
def test_skills_change_nothing_where_none_are_read(override: str) -> None:
    assert changed_by(override) == set()
    assert skill_digests("grpo") == skill_digests("grpo", override)
    assert "skills" not in skill_digests("grpo")


@pytest.mark.parametrize("method", [*SKILLED, "skill_grpo"])
@pytest.mark.parametrize("override", ["skills.entries=3", "teacher.informed=false"])
def test_the_bank_is_in_the_digest_of_what_reads_it(method: str, override: str) -> None:
    before, after = skill_digests(method), skill_digests(method, override)
    first = set() if method == "skill_grpo" else {"rollout 0"}
    assert {name for name in before if before[name] == after[name]} == first
    reader = "rollout" if method == "skill_grpo" else "update"
    plan = plan_of([f"method={method}"])
    for iteration in (0, 1):
        assert plan.job(reader, iteration).inputs["skills"] == plan.skills().output


def test_skills_written_in_hindsight_are_the_label_stage_s_and_need_no_bank() -> None:
    plan = plan_of(["method=opid"])
    assert plan.stages() == ("rollout", "label", "update")
    assert not plan.with_skills
    assert plan.job("label", 0).inputs == plan_of().job("label", 0).inputs
    assert plan.job("label", 0).digest != plan_of().job("label", 0).digest


def test_how_many_skills_are_shown_leaves_the_bank() -> None:
    before, after = skill_digests("opsd"), skill_digests("opsd", "skills.top=3")
    assert {name for name in before if before[name] == after[name]} == {"skills", "rollout 0"}
    before, after = skill_digests("skill_grpo"), skill_digests("skill_grpo", "method.skills=3")
    assert {name for name in before if before[name] == after[name]} == {"skills"}


def test_a_rerun_keeps_the_bank_of_the_run() -> None:
    base = plan_of(["method=opsd"])
    rerun = plan_of(["method=opsd", "skills.entries=3"], base, changed_from=(1, "update"))
    assert rerun.job("update", 1).inputs["skills"] == base.skills().output


def test_without_recovery_and_prevention_fewer_stages_are_needed() -> None:
    assert plan_of(["recovery.depth=0"]).stages() == ("rollout", "label", "update")


def test_a_job_names_its_inputs() -> None:
    plan = plan_of()
    update = plan.job("update", 0)
    assert plan.policy(1).digest == update.digest
    assert plan.policy(1).prefix == "run/checkpoints"
    assert update.inputs["policy"] == update.inputs["reference"] == plan.start()
    assert plan.job("update", 1).inputs["reference"] == plan.start()
    assert plan.job("recover", 1).inputs == {
        "policy": plan.policy(1),
        "rollout": plan.job("rollout", 1).output,
        "label": plan.job("label", 1).output,
    }
    assert "start" not in plan.evaluate(0).inputs
    assert plan.evaluate(2).inputs["start"] == plan.evaluate(0).output


def test_the_order_in_which_jobs_are_asked_for_does_not_matter() -> None:
    backwards = plan_of()
    found = {(stage, i): backwards.job(stage, i).digest for stage, i in reversed(NAMES)}
    forwards = plan_of()
    assert found == {(stage, i): forwards.job(stage, i).digest for stage, i in NAMES}


def test_a_long_plan_is_not_deep() -> None:
    plan = plan_of(["iterations=400"])
    last = plan.evaluate(400)
    assert last.inputs["policy"] == plan.policy(400)
    listed = [plan.job(stage, iteration) for iteration in range(400) for stage in plan.stages()]
    assert len({job.digest for job in listed}) == 1600


# ------------------------------------------------------------------------- larger models


def by_larger(student: Path, larger: Path, method: str, *overrides: str) -> Plan:
    given = [f"student={{kind: pretrained, path: {student}}}", f"larger_teacher.path={larger}"]
    return plan_of([*given, f"method={method}", *overrides])


@pytest.mark.parametrize("method", ["opd", "sod", "tcod", "turnopd"])
def test_a_larger_model_is_an_input_of_the_update_by_its_content(
    method: str, student: Path, larger: Path, tmp_path: Path
) -> None:
    plan = by_larger(student, larger, method)
    assert plan.stages() == ("rollout", "update")
    source = plan.job("update", 0).inputs["teacher"]
    assert source.folder == str(larger)
    assert all("teacher" not in plan.job("rollout", iteration).inputs for iteration in (0, 1))
    moved = shutil.copytree(larger, tmp_path / "moved")
    same = by_larger(student, moved, method)
    assert same.job("update", 1).digest == plan.job("update", 1).digest
    other = by_larger(student, student, method)
    assert other.job("rollout", 0).digest == plan.job("rollout", 0).digest
    assert other.job("update", 0).digest != plan.job("update", 0).digest
    assert other.job("rollout", 1).digest != plan.job("rollout", 1).digest


def test_without_a_larger_model_or_with_another_tokenizer_there_is_no_update(
    student: Path, larger: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="needs a larger model, and none is given"):
        plan_of(["method=opd"]).job("update", 0)
    with pytest.raises(ConfigError, match="needs a larger model, and none is given"):
        plan_of(["method=opd"]).job("rollout", 1)
    other = shutil.copytree(larger, tmp_path / "other")
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match="tokenizer is not the student's"):
        by_larger(student, other, "opd").job("update", 0)


def test_methods_that_need_none_have_no_such_input(larger: Path) -> None:
    assert changed_by(f"larger_teacher.path={larger}") == set()


def test_only_probes_hang_on_the_update_before(student: Path, larger: Path) -> None:
    plan = by_larger(student, larger, "turnopd")
    for stage in ("rollout", "update"):
        assert "depth" not in plan.job(stage, 0).inputs
        assert plan.job(stage, 1).inputs["depth"] == plan.job("update", 0).output
        assert "depth" not in by_larger(student, larger, "tcod").job(stage, 1).inputs


def test_a_long_plan_of_probes_is_not_deep(student: Path, larger: Path) -> None:
    plan = by_larger(student, larger, "turnopd", "iterations=400")
    assert plan.evaluate(400).inputs["policy"] == plan.policy(400)
    assert plan.job("rollout", 399).inputs["depth"] == plan.job("update", 398).output


@pytest.mark.parametrize(
    "setting", ["tcod.iterations_per_turn=2", "turnopd.warm_up=1", "turnopd.max_depth=4"]
)
def test_a_schedule_of_depth_is_the_rollout_s(setting: str, student: Path, larger: Path) -> None:
    method, _, key = setting.partition(".")
    before, after = by_larger(student, larger, method), by_larger(student, larger, method, f"method.{key}")
    assert before.job("rollout", 0).digest != after.job("rollout", 0).digest


def test_other_settings_of_such_a_method_leave_its_rollout(student: Path, larger: Path) -> None:
    before = by_larger(student, larger, "tcod")
    after = by_larger(student, larger, "tcod", "method.coefficient=2")
    assert before.job("rollout", 0).digest == after.job("rollout", 0).digest
    assert before.job("update", 0).digest != after.job("update", 0).digest
    assert by_larger(student, larger, "opd").job("rollout", 0).digest != before.job("rollout", 0).digest


# ------------------------------------------------------------------------- reruns


def test_before_the_changed_stage_a_rerun_keeps_the_digests() -> None:
    base = plan_of()
    rerun = plan_of(["recovery.depth=1", "rollout.response_tokens=100"], base, changed_from=(1, "recover"))
    for stage, iteration in NAMES:
        same = rerun.job(stage, iteration).digest == base.job(stage, iteration).digest
        assert same == ((iteration, LOOP.index(stage)) < (1, LOOP.index("recover"))), (stage, iteration)
    assert rerun.policy(1) == base.policy(1)
    assert rerun.policy(2) != base.policy(2)


def test_a_rerun_of_an_update_reads_what_was_stored() -> None:
    base = plan_of()
    rerun = plan_of(["method.prevention_weight=1"], base, changed_from=(1, "update"))
    inputs = rerun.job("update", 1).inputs
    assert inputs == base.job("update", 1).inputs
    assert rerun.job("update", 1).digest != base.job("update", 1).digest


def test_evaluating_on_other_games_keeps_the_policies() -> None:
    base = plan_of()
    other = plan_of(["environment.generated.seed=5"], base, changed_from=(10**9, "rollout"))
    assert other.evaluate(2).inputs["policy"] == base.evaluate(2).inputs["policy"]
    assert other.evaluate(2).inputs["data"] != base.evaluate(2).inputs["data"]
    assert other.evaluate(2).digest != base.evaluate(2).digest
    assert other.evaluate(2).inputs["start"] == other.evaluate(0).output


# ------------------------------------------------------------------ pretrained students


@pytest.fixture
def pretrained(student: Path, tmp_path: Path) -> Callable[[], str]:
    folder = tmp_path / "student"
    shutil.copytree(student, folder)

    def digest() -> str:
        return plan_of([f"student={{kind: pretrained, path: {folder}}}"]).start().digest

    return digest


def test_a_student_is_named_by_its_content(student: Path, pretrained: Callable[[], str]) -> None:
    elsewhere = plan_of([f"student={{kind: pretrained, path: {student}}}"])
    assert elsewhere.start().digest == pretrained()
    assert elsewhere.start().folder == str(student)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "config.json"])
def test_another_tokenizer_or_setting_is_another_student(
    name: str, pretrained: Callable[[], str], tmp_path: Path
) -> None:
    before = pretrained()
    file = tmp_path / "student" / name
    file.write_text(file.read_text() + "\n")
    assert pretrained() != before


def test_a_student_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    plan = plan_of([f"student={{kind: pretrained, path: {tmp_path / 'none'}}}"])
    with pytest.raises(ArtifactError, match="no such model folder"):
        plan.start()


# -------------------------------------------------------------------- a local teacher


@pytest.fixture
def taught(larger: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Digests of a run whose teacher is a model folder, from there or from where it was moved to."""
    folder = tmp_path / "teacher"
    shutil.copytree(larger, folder)

    def found(path: Path = folder, *overrides: str) -> dict[str, str]:
        section = f"teacher={{kind: local, path: {path}, prompt_tokens: 300, reply_tokens: 50}}"
        return digests(plan_of([section, *overrides]))

    return found


TAUGHT = {"label 0", "recover 0", "update 0"} | AFTER_UPDATE_0


def test_a_teacher_is_named_by_its_content(taught: Callable[..., dict[str, str]], larger: Path) -> None:
    assert taught(larger) == taught()
    assert taught(larger, "teacher.concurrency=3", "teacher.gpu_memory_share=0.7") == taught()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_another_model_teaches_other_things(
    name: str, taught: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    before = taught()
    file = tmp_path / "teacher" / name
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if name == "model.safetensors" else data + b"\n")
    after = taught()
    assert {one for one in before if before[one] != after[one]} == TAUGHT


@pytest.mark.parametrize(
    "override",
    ["engine=vllm", "dtype=float32", "temperature=0.5", "prompt_tokens=9", "reply_tokens=9"],
)
def test_how_it_answers_names_the_work(
    override: str, taught: Callable[..., dict[str, str]], larger: Path
) -> None:
    before, after = taught(), taught(larger, f"teacher.{override}")
    assert {one for one in before if before[one] != after[one]} == TAUGHT


def test_the_plan_of_a_local_teacher_loads_no_model(
    taught: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_more: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("pivotopd.models.checkpoint._read_model", refuse)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", refuse)
    assert taught()


def test_a_bank_of_skills_names_its_teacher(larger: Path) -> None:
    section = f"teacher={{kind: local, path: {larger}, prompt_tokens: 300, reply_tokens: 50}}"
    plan = plan_of(["method=opsd", section])
    assert plan.skills().inputs["teacher"].folder == str(larger)
    assert "teacher" not in plan_of(["method=opsd"]).skills().inputs


def test_a_teacher_that_cannot_be_asked_is_told_by_the_plan(larger: Path, tmp_path: Path) -> None:
    missing = plan_of([f"teacher={{kind: local, path: {tmp_path / 'none'}}}"])
    with pytest.raises(ArtifactError, match="no such model folder"):
        missing.job("label", 0)
    long = plan_of([f"teacher={{kind: local, path: {larger}, prompt_tokens: 999999}}"])
    with pytest.raises(ConfigError, match="pass the teacher's limit"):
        long.job("label", 0)
