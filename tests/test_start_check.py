"""The start check, against players whose figures are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from pivotopd.agent.prompting import Prompt, Prompter
from pivotopd.config import EnvironmentSection
from pivotopd.environments.alfworld.demonstrations import _TWINS
from pivotopd.environments.alfworld.demonstrator import Demonstrator, demonstrator_of, read
from pivotopd.environments.alfworld.environment import AlfworldEnvironment
from pivotopd.environments.alfworld.games import Game, task_of
from pivotopd.environments.alfworld.generator import PLAIN, PLAIN_TASK_TYPES, generate_games
from pivotopd.environments.alfworld.problem import parse_problem
from pivotopd.environments.alfworld.wording import make_wording, phrases
from pivotopd.environments.base import View
from pivotopd.errors import EnvironmentFault
from pivotopd.models.base import Completion, Request, Sampling
from pivotopd.models.codec import TokenizerCodec
from pivotopd.models.tiny import build_tokenizer
from pivotopd.start_check import StartCheck, StartReport

CODEC = TokenizerCodec(build_tokenizer(phrases()))
GAMES = generate_games(5, "valid", 40, PLAIN_TASK_TYPES, PLAIN)


@dataclass
class Player:
    """A generator that knows the view behind each prompt and answers by a rule."""

    answer: Callable[[View], str]
    views: dict[tuple[int, ...], View] = field(default_factory=dict)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Answer each request."""
        assert sampling.temperature == 1.0
        ids = [
            CODEC.encode_response(self.answer(self.views[tuple(request.prompt_ids)])) for request in requests
        ]
        return [Completion(np.array(row, np.int32), np.zeros(len(row), np.float32), "stop") for row in ids]


@dataclass(frozen=True)
class Noting(Prompter):
    """A prompter that tells a player the views."""

    player: Player = field(kw_only=True)

    def plain(self, *given: object) -> Prompt | None:
        prompt = super().plain(*given)  # type: ignore[arg-type]
        assert prompt is not None
        self.player.views[tuple(prompt.ids)] = prompt.view
        return prompt

    def hinted(
        self, prompt: Prompt, *, hint: str | None = None, lesson: str | None = None
    ) -> list[int] | None:
        ids = super().hinted(prompt, hint=hint, lesson=lesson)
        assert ids is not None
        self.player.views[tuple(ids)] = replace(prompt.view, hint=hint)
        return ids


def _agents() -> dict[str, Demonstrator]:
    worlds = [parse_problem(game.pddl_problem, game.task_sentence, game.id) for game in GAMES]
    kinds = [world.goal.object_type.removesuffix("type") for world in worlds]
    return {
        world.sentence: demonstrator_of(world.goal, _TWINS[kind])
        for world, kind in zip(worlds, kinds, strict=True)
    }


AGENTS = _agents()


def _check(answer: Callable[[View], str], games: Sequence[Game] = GAMES) -> StartReport:
    player = Player(answer)
    prompter = Noting(make_wording("compact"), CODEC, 3, 512, player=player)
    environment = AlfworldEnvironment(EnvironmentSection(prompt="compact"))
    check = StartCheck(environment, prompter, player, 20, 48, seed=0)
    return check.run([task_of(game) for game in games])


def _reply(action: str) -> str:
    return f"<think>so</think><action>{action}</action>"


def _with_gap(view: View) -> str:
    agent = AGENTS[view.instruction]
    return _reply(view.hint or agent.gap_action(read(view, agent.tool)))


def _without_gap(view: View) -> str:
    agent = AGENTS[view.instruction]
    return _reply(agent.informed_action(read(view, agent.tool)))


def test_a_player_with_the_gap_is_a_good_start() -> None:
    report = _check(_with_gap)
    assert 0.2 < report.success < 0.65
    assert report.admissible == 1.0
    assert report.obeyed == 1.0
    assert report.hints == 256
    assert report.mistakes == round(40 * (1 - report.success))
    assert report.recovery == 0.0
    assert _check(_with_gap) == report


def test_a_player_without_the_gap_wins_and_leaves_nothing_to_recover_from() -> None:
    report = _check(_without_gap)
    assert report.success == 1.0
    assert report.recovery is None
    assert report.mistakes == 0
    assert report.obeyed < 0.5
    assert len(report.shortfalls) == 3


def test_a_player_that_undoes_its_mistakes_recovers() -> None:
    def answer(view: View) -> str:
        agent = AGENTS[view.instruction]
        now = read(view, agent.tool)
        return _reply(agent.informed_action(now) if now.held else agent.gap_action(now))

    report = _check(answer)
    assert report.mistakes > 10
    assert report.mistakes > 40 * (1 - report.success), "mistakes of won episodes count too"
    assert report.recovery is not None
    assert report.recovery > 0.8


def test_garbage_is_neither_admissible_nor_obedient() -> None:
    report = _check(lambda _: "go to the moon", GAMES[:3])
    assert (report.success, report.admissible, report.obeyed) == (0.0, 0.0, 0.0)
    assert report.hints == 60


def test_an_action_without_its_tags_is_played_but_is_not_admissible() -> None:
    def bare(view: View) -> str:
        agent = AGENTS[view.instruction]
        return agent.informed_action(read(view, agent.tool))

    report = _check(bare, GAMES[:3])
    assert report.success > 0
    assert report.admissible == 0.0


def test_a_damaged_game_is_not_counted_as_lost() -> None:
    damaged = replace(GAMES[1], pddl_problem="(define (problem")
    with pytest.raises(EnvironmentFault, match=r"1 of 2 episodes of the start check broke off"):
        _check(_without_gap, [GAMES[0], damaged])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"success": 0.2}, "success"),
        ({"success": 0.6}, "success"),
        ({"recovery": 0.2}, "recovery"),
        ({"recovery": None}, "no pivotal mistake"),
        ({"admissible": 0.9}, "admissible"),
        ({"obeyed": 0.9}, "obeyed"),
    ],
)
def test_each_gate_is_named(change: dict[str, float | None], word: str) -> None:
    good = StartReport(128, 0.4, 0.98, 256, 0.97, 32, 0.02)
    assert good.shortfalls == ()
    (found,) = replace(good, **change).shortfalls  # type: ignore[arg-type]
    assert word in found
