"""Signals: every response scored by the frozen student, with and without privileged text.

Paper Eq. 4; see docs/method.md, Scoring. All of it runs before the first optimizer step, with the weights
that played: they are the frozen self-teacher. Both terms of a log-ratio come from the same engine, in one
call where it can be: prompts with and without privileged text begin alike, and the engine may use that.

Rows are scored in parts, each in calls of its own: the rollout rows of some groups, of others, then the
recovery rows. So a part's scores, to the last bit, do not depend on when it is scored, and what needs no
recovery need not wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, cast

from pivotopd.agent.action_tokens import action_mask
from pivotopd.agent.prompting import Prompt, Prompter
from pivotopd.errors import ArtifactError, ConfigError
from pivotopd.methods.base import Needs
from pivotopd.models.base import Nats, Scorer, ScoreRequest, TokenDistributions
from pivotopd.records import Distribution, Label, Lesson, Signal, Turn

PART_TOKENS: Final = 16_384
"""Groups are scored in one call until they have so many tokens: more would delay who waits for the call to
end, and fewer leave more of a call's last pass empty (5 % of the time on a CPU, a group of 10,000 a call)."""

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
class Part:
    """The scores of some rows, in their order.

    Attributes:
        rows: Indices of the rows.
        plain: Under their own prompts.
        reference: By the reference.
        texts: Under hint, lesson, peer and skills.
        teacher: By the larger model, by place in ``rows``.
    """

    rows: Sequence[int]
    plain: Sequence[Nats]
    reference: Sequence[Nats]
    texts: Sequence[_Found]
    teacher: Mapping[int, Nats]


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
            ConfigError: The method needs a larger model, and there is none.
        """
        signals: dict[int, Signal] = {}
        beside: dict[int, RowDistributions] = {}
        too_long = Counter[str]()
        teacher_tokens = 0
        for part in self.parts(rows, labels, lessons, winners, skills):
            for place, index in enumerate(part.rows):
                signals[index] = self._signal(rows[index], part, place)
                hint, lesson, _, skill = (one.distributions.get(place) for one in part.texts)
                beside[index] = RowDistributions(hint, lesson, skill)
            for name, found in zip(("hint", "lesson", "peer", "skill"), part.texts, strict=True):
                too_long[name] += found.too_long
            teacher_tokens += sum(map(len, part.teacher.values()))
        return Scored(
            [signals[index] for index in range(len(rows))],
            [beside[index] for index in range(len(rows))],
            hints_too_long=too_long["hint"],
            lessons_too_long=too_long["lesson"],
            peers_too_long=too_long["peer"],
            skills_too_long=too_long["skill"],
            teacher_tokens=teacher_tokens,
        )

    def parts(
        self,
        rows: Sequence[Turn],
        labels: Sequence[Label],
        lessons: Sequence[Lesson] = (),
        winners: Sequence[str] = (),
        skills: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> Iterator[Part]:
        """Score one part of the rows after the other; arguments and errors are those of :meth:`score`."""
        gold = {(label.episode, label.turn): label.gold_action for label in labels if label.pivotal}
        told = {one.episode: one.lesson for one in lessons if one.lesson} if self.needs.lesson else {}
        episodes = _rollouts_by_episode(rows)
        built = _Built(self.prompter, episodes)
        shown = _peers(episodes, winners) if self.needs.peer else {}
        for indices in _parts_of(rows):
            part = [rows[index] for index in indices]
            if self.needs.routed_skill:
                skilled = self._routed(part, built, lessons)
            else:
                skilled = self._skilled(part, built, skills if self.needs.skill else {})
            texts = [
                self._hinted(part, built, gold),
                self._privileged(part, built, lambda row: told.get(row.episode)),
                self._privileged(part, built, lambda row: shown.get(row.episode)),
                skilled,
            ]
            asked = _own(part)
            plain, found = self._scored(asked, texts)
            reference = plain if self.reference is self.policy else self.reference.score(asked)
            yield Part(indices, plain, reference, found, self._by_larger(part))

    def unlabelled(self, rows: Sequence[Turn]) -> Iterator[None]:
        """Ask for what :meth:`parts` does without labels, part by part, for scorers that remember it.

        Args:
            rows: Rollout rows.

        Raises:
            ConfigError: The method needs a larger model, and there is none.
        """
        for indices in _parts_of(rows):
            part = [rows[index] for index in indices]
            if self.reference is not self.policy:
                self.reference.score(_own(part))
            self._by_larger(part)
            yield

    def _signal(self, row: Turn, part: Part, place: int) -> Signal:
        """Return a row's signal: what its part has at its place."""
        hinted, lesson, peer, skill = (_listed(one.nats.get(place)) for one in part.texts)
        return Signal(
            episode=row.episode,
            turn=row.turn,
            source=row.source,
            pivot_turn=row.pivot_turn,
            plain_nats=part.plain[place].tolist(),
            reference_nats=part.reference[place].tolist(),
            hinted_nats=hinted,
            lesson_nats=lesson,
            skill_nats=skill,
            peer_nats=peer,
            teacher_nats=_listed(part.teacher.get(place)),
            action_mask=self._action(row),
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
        return dict(zip(chosen, self.larger.score(_own([rows[index] for index in chosen])), strict=True))

    def _action(self, row: Turn) -> list[int] | None:
        if not self.needs.action_span or row.source != "rollout":
            return None
        mask = action_mask(row.response_ids, self.prompter.wording, self.prompter.codec)
        return [int(inside) for inside in mask]

    def _hinted(
        self, rows: Sequence[Turn], built: _Built, gold: Mapping[tuple[str, int], str | None]
    ) -> _Prompts:
        """Return recovery rows' prompts with their own hint and pivotal rollout rows' with the gold hint."""
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            action = gold.get((row.episode, row.turn))
            if row.source == "recovery":
                prompts[index] = _with_hint(row)
            elif self.needs.gold_hint and action is not None:
                prompts[index] = built.hinted(row, hint=action)
        return prompts

    def _privileged(
        self, rows: Sequence[Turn], built: _Built, text_of: Callable[[Turn], str | None]
    ) -> _Prompts:
        """Return rollout rows' prompts with a text in the place of the lesson, where they have one."""
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            text = text_of(row) if row.source == "rollout" else None
            if text:
                prompts[index] = built.hinted(row, lesson=text)
        return prompts

    def _skilled(
        self, rows: Sequence[Turn], built: _Built, skills: Mapping[str, tuple[str, ...]]
    ) -> _Prompts:
        """Return rollout rows' prompts with skills in front of the task, where their episode has any."""
        prompts: dict[int, Sequence[int] | None] = {}
        for index, row in enumerate(rows):
            shown = skills.get(row.episode, ()) if row.source == "rollout" else ()
            if shown:
                prompt = self.prompter.skilled(built.plain(row), shown)
                prompts[index] = None if prompt is None else prompt.ids
        return prompts

    def _routed(self, rows: Sequence[Turn], built: _Built, lessons: Sequence[Lesson]) -> _Prompts:
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
                prompts[index] = built.hinted(row, hint=step, lesson=None if step else lesson)
        return prompts

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
class _Built:
    """Prompts built again for an iteration's rollout rows, with privileged text; equal ones once.

    Args:
        prompter: Builds them.
        episodes: The rollout's turns by episode.
    """

    prompter: Prompter
    episodes: _Episodes
    _known: dict[tuple[tuple[int, ...], str | None, str | None], Sequence[int] | None] = field(
        default_factory=dict
    )

    def plain(self, row: Turn) -> Prompt:
        """Rebuild a row's own prompt: else both scores would differ by more than the hint."""
        return self.prompter.rebuilt(self.episodes[row.episode], row.turn)

    def hinted(
        self, row: Turn, *, hint: str | None = None, lesson: str | None = None
    ) -> Sequence[int] | None:
        """Return a row's prompt with a hint or a lesson; None where that is too long."""
        key = tuple(row.prompt_ids), hint, lesson
        if key not in self._known:
            self._known[key] = self.prompter.hinted(self.plain(row), hint=hint, lesson=lesson)
        return self._known[key]


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


def _parts_of(rows: Sequence[Turn]) -> list[list[int]]:
    """Return the indices of whole groups' own rows by part, and at the end those of all recovery rows."""
    groups: dict[str, list[int]] = {}
    recoveries: list[int] = []
    for index, row in enumerate(rows):
        (recoveries if row.source == "recovery" else groups.setdefault(row.group, [])).append(index)
    parts: list[list[int]] = []
    room = 0
    for group in groups.values():
        if room <= 0:
            parts.append([])
            room = PART_TOKENS
        parts[-1] += group
        room -= sum(len(rows[index].prompt_ids) + len(rows[index].response_ids) for index in group)
    return [*parts, *([recoveries] if recoveries else [])]


def _own(rows: Sequence[Turn]) -> list[ScoreRequest]:
    """Return rows under their own prompts."""
    return [ScoreRequest(row.prompt_ids, row.response_ids) for row in rows]


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
