"""The bank and its retrieval, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.records import Episode, Skill, SkillUse
from pivotopd.skills import Ucb, bank_jobs, bank_of, by_family, retrieved_by_ucb, with_skills
from tests import play


def played(name: str, family: str, turns: int = 5, *, won: bool = False, sample: int = 0) -> Episode:
    return Episode(
        run="r", iteration=0, episode=name, task="t", task_hash="h", family=family, group=f"g{family}",
        sample=sample, seed=1, episode_return=10.0 * won, won=won, score=float(won), termination="done",
        error=None, turns=turns, environment="e", data_fingerprint="d", policy="p",
    )  # fmt: skip


def skill(name: str, family: str = "a") -> Skill:
    return Skill(name, family, f"text of {name}", False, "e", "t")


EPISODES = (
    played("e0", "a", 9),
    played("e1", "a", 8, won=True),
    played("e2", "a", 6, won=True),
    played("e3", "b", 4),
    played("e4", "b", 4),
    played("e5", "a", 3, won=True),
    played("e6", "c", 3),
)
TEXTS = ("avoid", "long way", "way", "other", "other", "way", None)


def test_won_before_lost_short_before_long_families_in_turns_and_no_text_twice() -> None:
    bank = bank_of(EPISODES, TEXTS, entries=47, teacher="t")
    assert [(one.skill, one.family, one.text, one.won, one.episode) for one in bank] == [
        ("s000", "a", "way", True, "e5"),
        ("s001", "b", "other", False, "e3"),
        ("s002", "a", "long way", True, "e1"),
        ("s003", "a", "avoid", False, "e0"),
    ]
    assert bank_of(EPISODES, TEXTS, entries=2, teacher="t") == bank[:2]
    assert bank_of(EPISODES, [None] * 7, entries=2, teacher="t") == []


@given(st.permutations(range(len(EPISODES))))
def test_the_order_of_episodes_does_not_matter(order: list[int]) -> None:
    shuffled = bank_of([EPISODES[i] for i in order], [TEXTS[i] for i in order], entries=47, teacher="t")
    assert shuffled == bank_of(EPISODES, TEXTS, entries=47, teacher="t")


def test_retrieval_by_task_type_takes_the_first_ones() -> None:
    bank = [skill("1"), skill("2", "b"), skill("3"), skill("4")]
    assert [one.skill for one in by_family(bank, "a", 2)] == ["1", "3"]
    assert by_family(bank, "c", 2) == ()


def test_training_jobs_get_the_texts_of_their_type_and_nothing_else_changes() -> None:
    jobs = play.jobs_of(play.environment().tasks("train")[:3])
    bank = [skill("1", jobs[0].task.family), skill("2", "none"), skill("3", jobs[0].task.family)]
    shown = with_skills(jobs, bank, 1)
    assert [replace(one, skills=()) for one in shown] == jobs
    for one in shown:
        assert one.skills == (("text of 1",) if one.task.family == jobs[0].task.family else ())


def test_bank_episodes_take_every_task_before_one_comes_again() -> None:
    tasks = play.environment().tasks("train")
    jobs = bank_jobs(tasks, run_seed=4, count=len(tasks) + 2)
    assert jobs == bank_jobs(tasks, run_seed=4, count=len(tasks) + 2)
    assert {one.task.id for one in jobs[: len(tasks)]} == {task.id for task in tasks}
    assert [one.task for one in jobs[len(tasks) :]] == [one.task for one in jobs[:2]]
    assert len({one.seed for one in jobs}) == len({one.episode for one in jobs}) == len(jobs)
    assert [one.task.id for one in bank_jobs(tasks, run_seed=5, count=8)] != [one.task.id for one in jobs[:8]]


def test_ucb_takes_the_unseen_first_in_the_order_of_the_bank() -> None:
    ucb = Ucb([skill("1"), skill("2"), skill("3", "b")], 1.0)
    first = ucb.choose("a")
    assert first is not None
    assert first.skill == "1"
    ucb.learn(first, 1.0)
    second = ucb.choose("a")
    assert second is not None
    assert second.skill == "2", "unseen beats any mean"
    assert ucb.choose("none") is None


@pytest.mark.parametrize(("exploration", "chosen"), [(0.0, "1"), (0.5, "1"), (1.0, "2")])
def test_ucb_by_hand(exploration: float, chosen: str) -> None:
    # means 3/4 and 1/2, N = 4 + 2 = 6 (a skill of another type does not count), ln 6 = 1.7918:
    # bonuses sqrt(1.7918 / 4) = 0.6693 and sqrt(1.7918 / 2) = 0.9465; they meet at c = 0.25 / 0.2772 = 0.90
    uses = [SkillUse("1", 4, 3.0), SkillUse("2", 2, 1.0), SkillUse("3", 99, 0.0)]
    ucb = Ucb([skill("1"), skill("2"), skill("3", "b")], exploration, uses)
    found = ucb.choose("a")
    assert found is not None
    assert found.skill == chosen
    gap = math.sqrt(math.log(6) / 2) - math.sqrt(math.log(6) / 4)
    assert 0.5 < 0.25 / gap < 1.0


def test_an_iteration_is_gone_through_by_group_and_sample_and_counts_as_it_goes() -> None:
    bank = [skill("1"), skill("2")]
    episodes = [played(f"e{i}", "a", won=i == 1, sample=i) for i in range(4)]
    ucb = Ucb(bank, 0.0)
    chosen = retrieved_by_ucb(ucb, [*reversed(episodes), played("lone", "b")])
    # 1 (lost), 2 (won), then 2 by its mean 1, then 2 by its mean 1/2
    assert {key: [one.skill for one in skills] for key, skills in chosen.items()} == {
        "e0": ["1"], "e1": ["2"], "e2": ["2"], "e3": ["2"], "lone": [],
    }  # fmt: skip
    assert ucb.statistics() == [SkillUse("1", 1, 0.0), SkillUse("2", 3, 1.0)]


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 12))
def test_statistics_carry_over_as_if_iterations_were_one(won: list[bool], cut: int) -> None:
    bank = [skill("1"), skill("2"), skill("3")]
    episodes = [played(f"e{i:02d}", "a", won=one, sample=i) for i, one in enumerate(won)]
    whole = Ucb(bank, 1.0)
    together = retrieved_by_ucb(whole, episodes)
    first = Ucb(bank, 1.0)
    parts = dict(retrieved_by_ucb(first, episodes[:cut]))
    second = Ucb(bank, 1.0, first.statistics())
    parts |= retrieved_by_ucb(second, episodes[cut:])
    assert parts == together
    assert second.statistics() == whole.statistics()
    assert sum(one.uses for one in whole.statistics()) == len(won)
    assert sum(one.reward_sum for one in whole.statistics()) == sum(won)
