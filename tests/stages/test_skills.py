"""The skill bank in a run: made once, the same again, and read by rollout or update."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pivotopd.agent.prompting import Prompt
from pivotopd.artifacts import Artifact
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.models.base import ScoreRequest
from pivotopd.records import Episode, Signal, Skill, SkillUse, Turn
from pivotopd.skills import by_family
from stages.command import job_of
from stages.plan import Plan
from stages.runner import perform
from stages.runs import open_run
from stages.work import Work
from tests.small_student import small_config


def opened(root: Path, student: Path, method: str, **changes: object) -> tuple[Work, Plan]:
    return open_run(small_config(root, student, method={"name": method}, update__idle_limit=9, **changes))


def done(work: Work, plan: Plan, stage: str, iteration: int | None = None) -> Artifact:
    return perform(work, job_of(plan, stage, iteration)).artifact


@pytest.fixture(scope="module")
def sd(student: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Work, Plan]:
    """Two iterations of Skill-SD."""
    work, plan = opened(tmp_path_factory.mktemp("skills"), student, "skill_sd")
    done(work, plan, "skills")
    for iteration in (0, 1):
        done(work, plan, "rollout", iteration)
        done(work, plan, "update", iteration)
    return work, plan


def test_the_bank_is_the_same_again_and_of_the_start_policy(
    sd: tuple[Work, Plan], student: Path, tmp_path: Path
) -> None:
    work, plan = sd
    bank = done(work, plan, "skills")
    again = done(*opened(tmp_path, student, "opsd"), "skills")
    assert again.digest == bank.digest, "methods share it"
    assert again.manifest.content_digest == bank.manifest.content_digest
    episodes = {one.episode: one for one in bank.rows(Episode)}
    assert len(episodes) == work.config.skills.episodes
    skills = bank.rows(Skill)
    assert 0 < len(skills) <= work.config.skills.entries
    assert (
        len({(one.family, one.text) for one in skills}) == len({one.skill for one in skills}) == len(skills)
    )
    for one in skills:
        assert (one.won, one.family) == (episodes[one.episode].won, episodes[one.episode].family)


def test_a_full_bank_is_cut_and_batches_change_nothing(student: Path, tmp_path: Path) -> None:
    whole = done(*opened(tmp_path / "a", student, "opsd"), "skills").rows(Skill)
    cut = done(
        *opened(tmp_path / "b", student, "opsd", skills__entries=2, rollout__batch_episodes=5), "skills"
    )
    assert len(whole) > 2
    assert cut.rows(Skill) == whole[:2]


def test_ucb_statistics_go_on_from_iteration_to_iteration(sd: tuple[Work, Plan]) -> None:
    work, plan = sd
    total = 0
    won = 0.0
    for iteration in (0, 1):
        uses = done(work, plan, "update", iteration).rows(SkillUse)
        episodes = done(work, plan, "rollout", iteration).rows(Episode)
        total, won = total + len(episodes), won + sum(one.won for one in episodes)
        assert sum(one.uses for one in uses) == total
        assert sum(one.reward_sum for one in uses) == won
    assert plan.job("update", 1).inputs["before"] == plan.job("update", 0).output
    assert "before" not in plan.job("update", 0).inputs


def prompt_of(work: Work, plan: Plan, turns: list[Turn], index: int, texts: tuple[str, ...]) -> Prompt:
    prompter = work.prompter(plan.policy(0))
    found = prompter.skilled(prompter.rebuilt(turns, index), texts)
    assert found is not None
    return found


def test_rows_are_scored_under_the_skills_of_their_task_type(student: Path, tmp_path: Path) -> None:
    work, plan = opened(tmp_path, student, "opsd", skills__top=2)
    bank = done(work, plan, "skills").rows(Skill)
    rollout, update = done(work, plan, "rollout", 0), done(work, plan, "update", 0)
    family = {one.episode: one.family for one in rollout.rows(Episode)}
    rows = rollout.rows(Turn)
    signals = update.rows(Signal)
    assert len(signals) == len(rows)
    assert all(one.skill_nats is not None for one in signals)
    engine = work.engine(plan.policy(0))
    moved = 0
    for row, signal in list(zip(rows, signals, strict=True))[::5]:
        turns = [one for one in rows if one.episode == row.episode]
        texts = tuple(one.text for one in by_family(bank, family[row.episode], 2))
        prompt = prompt_of(work, plan, turns, row.turn, texts)
        assert prompt.view.skills == texts
        assert work.environment.wording.privileged(work.environment.wording.prompt(prompt.view))
        (nats,) = engine.score([ScoreRequest(prompt.ids, row.response_ids)])
        np.testing.assert_allclose(signal.skill_nats, nats, atol=1e-4)
        moved += not np.allclose(signal.skill_nats, signal.plain_nats, atol=1e-3)
    assert moved > 0


def test_skill_grpo_trains_on_prompts_with_skills_and_is_evaluated_without(
    student: Path, tmp_path: Path
) -> None:
    work, plan = opened(tmp_path, student, "skill_grpo", method__skills=2)
    bank = done(work, plan, "skills").rows(Skill)
    wording, codec = work.environment.wording, work.policy(plan.policy(0)).codec
    rollout = done(work, plan, "rollout", 0)
    family = {one.episode: one.family for one in rollout.rows(Episode)}
    for row in rollout.rows(Turn):
        text, _ = codec.decode(row.prompt_ids)
        shown = [line.removeprefix("<skill> ") for line in text.splitlines() if line.startswith("<skill> ")]
        assert shown == [one.text for one in by_family(bank, family[row.episode], 2)]
        assert wording.privileged(text)
        assert not wording.privileged(text, skills_allowed=True)
    for row in done(work, plan, "evaluate", 0).rows(Turn):
        text, _ = codec.decode(row.prompt_ids)
        assert not wording.privileged(text)
    update = done(work, plan, "update", 0)
    assert all(one.skill_nats is None for one in update.rows(Signal))


def test_only_methods_with_skills_have_a_bank(student: Path, tmp_path: Path) -> None:
    _, plan = opened(tmp_path, student, "grpo")
    with pytest.raises(ConfigError, match="method grpo retrieves no skills"):
        job_of(plan, "skills", None)
    work, other = opened(tmp_path, student, "opsd", name="other")
    done(work, other, "rollout", 0)
    with pytest.raises(ArtifactError, match="does not exist"):
        done(work, other, "update", 0)
