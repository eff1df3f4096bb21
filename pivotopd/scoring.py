"""Signals: every response scored by the frozen student, with and without privileged text.

Paper Eq. 4; see docs/method.md, Scoring. All of it runs before the first optimizer step, with the weights
that played: they are the frozen self-teacher. Both terms of a log-ratio come from the same engine, in one
call where it can be: prompts with and without privileged text begin alike, and the engine may use that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from pivotopd.agent.action_tokens import action_mask
from pivotopd.agent.prompting import Prompt, Prompter
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.methods.base import Needs
from pivotopd.models.base import Nats, Scorer, ScoreRequest, TokenDistributions
from pivotopd.records import Distribution, Label, Lesson, Signal, Turn

_Episodes = Mapping[str, Sequence[Turn]]
_Prompts = Mapping[int, Sequence[int] | None]
"""Index of a row to its prompt with privileged text; None where that is too long."""


@dataclass(frozen=True, slots=True)
class RowDistributions:
    """Distributions at one row's tokens, by the privileged text; None where it has no such score."""

    hint: TokenDistributions | None = None
    lesson: TokenDistributions | None = None
    skill: TokenDistributions | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """Signals and distributions in row order, and how many privileged prompts were too long to score."""

    signals: list[Signal]
    distributions: list[RowDistributions]
    hints_too_long: int
    lessons_too_long: int
    peers_too_long: int
    skills_too_long: int = 0
    teacher_tokens: int = 0
    """Response tokens that the larger model scored."""


@dataclass(frozen=True)
class Signaller:
    """Scores the rows of one iteration.

    Args:
        prompter: Rebuilds prompts with a hint or a lesson.
        policy: The frozen student.
        reference: The initial policy; the same object as ``policy`` in the first iteration.
        needs: What the method asks for.
        larger: The larger model, for methods that need one.
    """

    prompter: Prompter
    policy: Scorer
    reference: Scorer
    needs: Needs
    larger: Scorer | None = None

    def score(
        self,
        rows: Sequence[Turn],
        labels: Sequence[Label],
        lessons: Sequence[Lesson] = (),
        winners: Sequence[str] = (),
        skills: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> Scored:
        """Return one signal a row.

        Args:
            rows: Rollout and recovery rows.
            labels: Labels of the rollout's episodes.
            lessons: Lessons of the rollout's episodes.
            winners: Ids of the successful episodes, the first ones first; only for methods with peers.
            skills: Texts of the skills that each episode is scored under, by its id.

        Raises:
            ArtifactError: A prompt to be hinted cannot be rebuilt: the rows come from other settings.
        """
        gold = {(label.episode, label.turn): label.gold_action for label in labels if label.pivotal}
        told = {one.episode: one.lesson for one in lessons if one.lesson}
        asked = [ScoreRequest(row.prompt_ids, row.response_ids) for row in rows]
        episodes = _rollouts_by_episode(rows)
        taught = told if self.needs.lesson else {}
        shown = _peers(episodes, winners) if self.needs.peer else {}
        skilled = self._skilled(rows, episodes, skills if self.needs.skill else {})
        if self.needs.routed_skill:
            skilled = self._routed(rows, episodes, lessons)
        plain, (hinted, lesson, peer, skill) = self._scored(
            asked,
            [
                self._hinted(rows, episodes, gold),
                self._privileged(rows, episodes, lambda row: taught.get(row.episode)),
                self._privileged(rows, episodes, lambda row: shown.get(row.episode)),
                skilled,
            ],
        )
        reference = plain if self.reference is self.policy else self.reference.score(asked)
        teacher = self._by_larger(rows)
        signals = [
            Signal(
                episode=row.episode,
                turn=row.turn,
                source=row.source,
                pivot_turn=row.pivot_turn,
                plain_nats=plain[index].tolist(),
                reference_nats=reference[index].tolist(),
                hinted_nats=_listed(hinted.nats.get(index)),
                lesson_nats=_listed(lesson.nats.get(index)),
                skill_nats=_listed(skill.nats.get(index)),
                peer_nats=_listed(peer.nats.get(index)),
                teacher_nats=_listed(teacher.get(index)),
                action_mask=self._action(row),
            )
            for index, row in enumerate(rows)
        ]
        parts = [one.distributions for one in (hinted, lesson, skill)]
        return Scored(
            signals,
            [RowDistributions(*(part.get(index) for part in parts)) for index in range(len(rows))],
            hinted.too_long,
            lesson.too_long,
            peer.too_long,
            skill.too_long,
            sum(len(one) for one in teacher.values()),
        )

    def _by_larger(self, rows: Sequence[Turn]) -> dict[int, Nats]:
        """Score rollout rows by the larger model, under the very ids that the student saw and sampled.

        Raises:
            ConfigError: The method needs a larger model, and there is none.
        """
        if not self.needs.larger_teacher:
            return {}
        if self.larger is None:
            raise ConfigError(
                "the method needs a larger model, and none is given", where="larger_teacher.path"
            )
        chosen = [index for index, row in enumerate(rows) if row.source == "rollout"]
        requests = [ScoreRequest(rows[index].prompt_ids, rows[index].response_ids) for index in chosen]
        return dict(zip(chosen, self.larger.score(requests), strict=True))

    def _action(self, row: Turn) -> list[int] | None:
        if not self.needs.action_span or row.source != "rollout":
            return None
        mask = action_mask(row.response_ids, self.prompter.wording, self.prompter.codec)
        return [int(inside) for inside in mask]

    def _hinted(
        self, rows: Sequence[Turn], episodes: _Episodes, gold: Mapping[tuple[str, int], str | None]
    ) -> _Prompts:
        """Return recovery rows' prompts with their own hint and pivotal rollout rows' with the gold hint."""
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            action = gold.get((row.episode, row.turn))
            if row.source == "recovery":
                prompts[index] = _with_hint(row)
            elif self.needs.gold_hint and action is not None:
                prompts[index] = self.prompter.hinted(self._plain(row, episodes), hint=action)
        return prompts

    def _privileged(
        self, rows: Sequence[Turn], episodes: _Episodes, text_of: Callable[[Turn], str | None]
    ) -> _Prompts:
        """Return rollout rows' prompts with a text in the place of the lesson, where they have one."""
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            text = text_of(row) if row.source == "rollout" else None
            if text:
                prompts[index] = self.prompter.hinted(self._plain(row, episodes), lesson=text)
        return prompts

    def _skilled(
        self, rows: Sequence[Turn], episodes: _Episodes, skills: Mapping[str, tuple[str, ...]]
    ) -> _Prompts:
        """Return rollout rows' prompts with skills in front of the task, where their episode has any."""
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            shown = skills.get(row.episode, ()) if row.source == "rollout" else ()
            if shown:
                prompt = self.prompter.skilled(self._plain(row, episodes), shown)
                prompts[index] = None if prompt is None else prompt.ids
        return prompts

    def _routed(self, rows: Sequence[Turn], episodes: _Episodes, lessons: Sequence[Lesson]) -> _Prompts:
        """Return rollout rows' prompts with the turn's skill as a hint, else the episode's as a lesson."""
        whole = {one.episode: one.lesson for one in lessons}
        steps = {
            (one.episode, turn): text
            for one in lessons
            for turn, text in zip(one.step_turns, one.step_lessons, strict=True)
        }
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            step, lesson = steps.get((row.episode, row.turn)), whole.get(row.episode)
            if row.source == "rollout" and (step or lesson):
                plain = self._plain(row, episodes)
                prompts[index] = self.prompter.hinted(plain, hint=step, lesson=None if step else lesson)
        return prompts

    def _plain(self, row: Turn, episodes: _Episodes) -> Prompt:
        """Rebuild a rollout row's own prompt: else both scores would differ by more than the hint."""
        return self.prompter.rebuilt(episodes[row.episode], row.turn)

    def _scored(
        self, asked: Sequence[ScoreRequest], texts: Sequence[_Prompts]
    ) -> tuple[list[Nats], list[_Found]]:
        """Score rows under their own prompts and under others, these with distributions where needed.

        Args:
            asked: The rows under their own prompts.
            texts: By kind of privileged text, prompts of some of these rows.
        """
        found = [_Found(sum(ids is None for ids in one.values())) for one in texts]
        fitting = [
            (kind, row, ScoreRequest(ids, asked[row].response_ids))
            for kind, one in zip(found, texts, strict=True)
            for row, ids in one.items()
            if ids is not None
        ]
        others, width = [request for _, _, request in fitting], self.needs.target_tokens
        if not (others and width):
            scores = self.policy.score([*asked, *others])
            for (kind, row, _), nats in zip(fitting, scores[len(asked) :], strict=True):
                kind.nats[row] = nats
            return scores[: len(asked)], found
        # A call has one width: in the same one, plain rows, most of all, would carry what nobody reads.
        held = self.policy.score_distributions(others, None if width == "all" else width)
        for (kind, row, _), (nats, distributions) in zip(fitting, held, strict=True):
            kind.nats[row], kind.distributions[row] = nats, distributions
        return self.policy.score(asked), found


@dataclass(frozen=True, slots=True)
class _Found:
    """Scores under one kind of privileged prompt, by row, and how many such prompts were too long."""

    too_long: int
    nats: dict[int, Nats] = field(default_factory=dict)
    distributions: dict[int, TokenDistributions] = field(default_factory=dict)


def distribution_records(rows: Sequence[Turn], scored: Scored) -> Iterator[Distribution]:
    """Yield the distributions of scored rows as records, row by row."""
    for row, found in zip(rows, scored.distributions, strict=True):
        for text, one in (("hint", found.hint), ("lesson", found.lesson), ("skill", found.skill)):
            if one is not None:
                yield Distribution(
                    episode=row.episode,
                    turn=row.turn,
                    source=row.source,
                    pivot_turn=row.pivot_turn,
                    text=text,
                    width=one.ids.shape[1],
                    # arrays stay arrays: as lists they would take many times the memory
                    ids=cast("Sequence[int]", one.ids.reshape(-1)),
                    nats=cast("Sequence[float]", one.nats.reshape(-1)),
                )


def _with_hint(row: Turn) -> Sequence[int]:
    """Return the prompt that sampled a recovery.

    Raises:
        ArtifactError: The row has none.
    """
    if not row.hinted_prompt_ids:
        raise ArtifactError(
            f"the recovery row of episode {row.episode}, turn {row.turn} has no prompt with a hint",
            mend="rerun the recover stage",
        )
    return row.hinted_prompt_ids


def _rollouts_by_episode(rows: Sequence[Turn]) -> dict[str, list[Turn]]:
    """Return each episode's own turns in order."""
    episodes: dict[str, list[Turn]] = {}
    for row in rows:
        if row.source == "rollout":
            episodes.setdefault(row.episode, []).append(row)
    for turns in episodes.values():
        turns.sort(key=lambda turn: turn.turn)
    return episodes


def _peers(episodes: _Episodes, winners: Sequence[str]) -> dict[str, str | None]:
    """Return for each episode the actions of the first winner of its group other than itself, or None."""
    actions = {key: "; ".join(turn.action for turn in episodes[key]) for key in winners if key in episodes}
    found: dict[str, str | None] = {}
    for key, turns in episodes.items():
        peers = (one for one in actions if one != key and episodes[one][0].group == turns[0].group)
        first = next(peers, None)
        found[key] = None if first is None else actions[first]
    return found


def _listed(values: Nats | None) -> list[float] | None:
    return None if values is None else [float(value) for value in values]
