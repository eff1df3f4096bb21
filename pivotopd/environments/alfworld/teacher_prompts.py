"""What a language model is asked as a teacher: read a finished episode, or name the next action.

Structure after the paper's App. D.4, in our words. What is the same for all episodes stands first, so that a
server with a prefix cache computes it once; the question stands last.
"""

from __future__ import annotations

from typing import Final

from pivotopd.environments.alfworld.engine import WordingStyle
from pivotopd.environments.base import PlayedEpisode, PlayedTurn, ReplyForm, View

_PLACE: Final = {"move": "move OBJECT to PLACE", "put": "put OBJECT in/on PLACE"}

_RULES: Final = """\
Rules of the world:
* An agent in a household acts by short text commands, one a turn. These are all there are:
  go to PLACE | open PLACE | close PLACE | take OBJECT from PLACE | {place}
  clean OBJECT with PLACE | heat OBJECT with PLACE | cool OBJECT with PLACE
  use OBJECT | slice OBJECT with OBJECT | examine THING | look | inventory
* OBJECT and PLACE are a name and a number, exactly as the observations write them: apple 1, fridge 1.
* The agent holds at most one object. It must stand at a place to use it, and a closed place must be opened
  before its content is seen or something is put in.
* Sinks clean, microwaves heat, fridges cool. A lamp is used while the object to be looked at is held.
* A command that does not fit the moment answers "Nothing happens." and costs a turn."""

_LABEL: Final = """\
You review what an agent did in a household text game, so that it learns from its own play.

{rules}

Think about the episode step by step before you answer:
* At which turns did its choice matter and was wrong: an action that led away from the goal, lost time that \
was not to be lost, or repeated what had failed? A won episode can hold such turns too.
* Judge each turn by what the agent could know then, not by what it found out later.
* What one piece of advice, given before the first turn, would have helped most in this task?

{form}"""

_BLOCKS: Final = """\
Form of the answer. First one JSON object in a fenced block:
```json
{{
  "episode_summary": "what happened, in one or two sentences",
  "episode_lesson": "the advice, in one or two sentences that speak to the agent",
  "step_lessons": {{"<turn index>": "one short imperative sentence", ...}}
}}
```
Then, for every turn in step_lessons, one line
<correct_action step="<turn index>">the command that the agent should have given</correct_action>
The command is one of the list above, complete, without quotes and without explanation. It must have been \
possible at that turn, with what the agent had seen until then. Name at most {m} turns, the most important \
first; if nothing was wrong, leave step_lessons empty and name none. Write no other JSON, and nothing after \
the last line."""

_JSON: Final = """\
Form of the answer. One JSON object and nothing else:
{{
  "episode_summary": "what happened, in one or two sentences",
  "episode_lesson": "the advice, in one or two sentences that speak to the agent",
  "step_lessons": [{{"step": <turn index>, "lesson": "one short imperative sentence", "correct_action": \
"the command that the agent should have given"}}, ...]
}}
The command is one of the list above, complete and without explanation. It must have been possible at that \
turn, with what the agent had seen until then. Name at most {m} turns, the most important first; if nothing \
was wrong, leave step_lessons empty."""

_EPISODE: Final = """\

=== The episode ===
Task: {instruction}
{turns}
{end}

Outcome: the task was {outcome}.
Turns that you may name: {eligible}.

Which turns went wrong, what should have been done there, and what is the lesson? Answer in the form above."""

_QUERY: Final = """\
You advise an agent in a household text game, at one moment of its play.

{rules}

Name the single best next command. It must be one of the admissible commands that are listed. Think briefly \
if you need to, then end with one line
<correct_action>the command</correct_action>
that holds the command and nothing else.

=== The moment ===
Task: {instruction}
{history}Turn {turn}. The agent sees: {observation}
Admissible commands: {admissible}

Which of them should it give now?"""

_SKILL: Final = """\
You read what an agent did in a household text game and keep what helps in other tasks of the same kind.

{rules}

Write one skill: after a task that was done, the way of working that did it; after one that was not, what to \
do otherwise. It must help with other objects and in other rooms, so name kinds of things and of places, \
never numbers. One or two short sentences that speak to the agent, 40 words at most.

Form of the answer. One JSON object and nothing else: {{"skill": "<the skill>"}}

=== The episode ===
Task: {instruction}
{turns}
{end}

Outcome: the task was {outcome}.

Which skill does it teach? Answer in the form above."""

_ANALYSIS: Final = """\
You read what an agent did in a household text game and write down, in hindsight, the skills that it teaches.

{rules}

* The episode skill holds for the whole task: after a task that was done, the way of working that did it; \
after one that was not, the rule that would have avoided the failure.
* A step skill holds at one turn that decided much: what the moment asked for, from what was known then. \
Name at most {m} turns, the most important first, or none.

Form of the answer. One JSON object and nothing else:
{{
  "episode_summary": "what happened, in one or two sentences",
  "episode_skill": "<the episode skill, one or two sentences that speak to the agent>",
  "step_skills": {{"<turn index>": "<the step skill, one short imperative sentence>", ...}}
}}

=== The episode ===
Task: {instruction}
{turns}
{end}

Outcome: the task was {outcome}.
Turns that you may name: {eligible}.

Which skills does it teach? Answer in the form above."""

_ENDS: Final = {
    "won": "done",
    "turn_limit": "not done when the last turn was used up",
    "prompt_too_long": "not done when the play was cut",
    "environment_error": "not done when the game broke",
}


class AlfworldTeacherWording:
    """ALFWorld's text for a teacher; implements :class:`pivotopd.environments.base.TeacherWording`.

    Reasoning of the student is not shown: a prompt stays short, and a teacher judges what was done.

    Args:
        style: Command wording of the engine: ``move`` or ``put``.
    """

    def __init__(self, style: WordingStyle) -> None:
        self._rules = _RULES.format(place=_PLACE[style])

    def label_prompt(self, episode: PlayedEpisode, max_candidates: int, form: ReplyForm) -> str:
        """Ask what went wrong in an episode and what should have been done."""
        asked = (_BLOCKS if form == "blocks" else _JSON).format(m=max_candidates)
        return _LABEL.format(rules=self._rules, form=asked) + _EPISODE.format(
            eligible=_eligible(len(episode.turns)), **_told(episode)
        )

    def analysis_prompt(self, episode: PlayedEpisode, max_steps: int) -> str:
        """Ask for the skill of an episode, and for those of single turns."""
        eligible = _eligible(len(episode.turns))
        return _ANALYSIS.format(rules=self._rules, m=max_steps, eligible=eligible, **_told(episode))

    def skill_prompt(self, episode: PlayedEpisode) -> str:
        """Ask for one reusable skill that an episode teaches."""
        return _SKILL.format(rules=self._rules, **_told(episode))

    def query_prompt(self, view: View) -> str:
        """Ask for the single best next action: what the student's prompt tells, and nothing else."""
        first = view.turn - len(view.history)
        history = "".join(
            _turn(index, PlayedTurn(seen, action, committed=True)) + "\n"
            for index, (seen, action) in enumerate(view.history, start=first)
        )
        admissible = [action for action in view.admissible or () if action != "help"]
        return _QUERY.format(
            rules=self._rules,
            instruction=_task(view.instruction),
            history=history,
            turn=view.turn,
            observation=view.observation,
            admissible="; ".join(admissible),
        )


def _told(episode: PlayedEpisode) -> dict[str, str]:
    """Tell an episode: the parts that both prompts about one show."""
    last = episode.last_observation
    return {
        "instruction": _task(episode.instruction),
        "turns": "\n".join(_turn(index, turn) for index, turn in enumerate(episode.turns)),
        "end": "" if last is None else f"After the last turn it saw: {last}",
        "outcome": "done" if episode.won else _ENDS.get(episode.termination, "not done"),
    }


def _task(instruction: str) -> str:
    return instruction.removeprefix("Your task is to: ")


def _turn(index: int, turn: PlayedTurn) -> str:
    said = turn.action if turn.committed else f"(no command in the required form) {turn.action}"
    return f"Turn {index}. It saw: {turn.observation}\n  It did: {said}"


def _eligible(turns: int) -> str:
    if not turns:
        return "none"
    return "0" if turns == 1 else f"all of 0 to {turns - 1}"
