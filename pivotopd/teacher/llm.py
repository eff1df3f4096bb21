"""A language model as a teacher: what it is asked, and what its replies mean.

Paper sections 3.1, 3.2 and App. B; see docs/method.md, Labelling. A reply that cannot be read is asked for
once more; then its episode has no signal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pivotopd.environments.base import Environment
from pivotopd.errors import TeacherError
from pivotopd.ledger import Counts
from pivotopd.records import Turn
from pivotopd.teacher.base import Candidate, Query, Reading, Transcript, told
from pivotopd.teacher.chat import Answer, Ask, Chat
from pivotopd.teacher.replies import (
    LabelReply,
    Unreadable,
    label_schema,
    read_analysis_reply,
    read_label_reply,
    read_query_reply,
    read_skill_reply,
    well_formed,
)
from pivotopd.teacher.resolution import resolve

_SHOWN: Final = re.compile(r'"\s*:\s*"([^"\n]+)"')
_AGAIN = "\n\nAn earlier answer to this could not be used: {reason}. Keep to the form exactly."

T = TypeVar("T")


@dataclass
class LlmTeacher:
    """Labels episodes by asking a language model.

    Args:
        environment: Gives the prompts and the form in which actions are compared.
        chat: Answers.
        max_candidates: m, most candidates an episode.
    """

    environment: Environment
    chat: Chat
    max_candidates: int
    name: str = field(init=False)
    _answered: int = 0
    _unreadable: int = 0
    _cut: int = 0
    _copied: int = 0
    _unread: int = 0
    _silent: int = 0
    _ineligible: int = 0
    _unresolved: int = 0

    def __post_init__(self) -> None:
        """Name the teacher by who answers."""
        self.name = self.chat.name

    @property
    def spent(self) -> Counts:
        """What the chat used."""
        return self.chat.spent

    @property
    def counts(self) -> dict[str, int]:
        """What became of the replies."""
        return {
            "teacher_replies_unreadable": self._unreadable,
            "teacher_replies_cut": self._cut,
            "teacher_sentences_copied": self._copied,
            "teacher_episodes_unread": self._unread,
            "teacher_queries_unread": self._silent,
            "teacher_candidates_ineligible": self._ineligible,
            "teacher_actions_unresolved": self._unresolved,
        }

    def read(self, transcripts: Sequence[Transcript], sample: int = 0) -> list[Reading]:
        """Return one reading an episode; one that could not be had or read says why.

        Args:
            transcripts: The episodes.
            sample: Number of the reading; a number above 0 asks for another draw.

        Raises:
            TeacherError: Not one request of this teacher has been answered.
        """

        def ask_of(transcript: Transcript) -> Ask:
            return replace(self._label_ask(transcript), sample=sample)

        return self._readings(transcripts, ask_of, read_label_reply)

    def analyse(self, transcripts: Sequence[Transcript]) -> list[Reading]:
        """Return one reading an episode, with the skills that it teaches; as for :meth:`read`.

        Raises:
            TeacherError: Not one request of this teacher has been answered.
        """
        readings = self._readings(transcripts, self._analysis_ask, read_analysis_reply)
        return [replace(one, step_lessons=one.step_lessons[: self.max_candidates]) for one in readings]

    def _readings(
        self,
        transcripts: Sequence[Transcript],
        ask_of: Callable[[Transcript], Ask],
        read: Callable[[str], LabelReply],
    ) -> list[Reading]:
        listed = [transcript for transcript in transcripts if transcript.turns]
        asks = [ask_of(transcript) for transcript in listed]
        answers = self._ask(asks)
        found = [self._parsed(answer, read) for answer in answers]
        again = [index for index, reply in enumerate(found) if isinstance(reply, Unreadable)]
        repeated = self._ask([_again(asks[index], found[index]) for index in again])
        for index, answer in zip(again, repeated, strict=True):
            if answer.text is not None:  # else the first reply remains, with its reason
                answers[index], found[index] = answer, self._parsed(answer, read)
        readings = {
            transcript.episode.episode: self._reading(transcript, answer, reply)
            for transcript, answer, reply in zip(listed, answers, found, strict=True)
        }
        empty = Reading((), unread="no turn was played")
        return [readings.get(transcript.episode.episode, empty) for transcript in transcripts]

    def next_actions(self, queries: Sequence[Query]) -> list[str | None]:
        """Return the resolved next action of each query; None where none was named or none fits.

        Raises:
            TeacherError: Not one request of this teacher has been answered.
        """
        asks = [Ask(self.environment.teacher_wording.query_prompt(query.view)) for query in queries]
        found = [self._parsed(answer, read_query_reply) for answer in self._ask(asks)]
        again = [index for index, reply in enumerate(found) if isinstance(reply, Unreadable)]
        repeated = self._ask([_again(asks[index], found[index]) for index in again])
        for index, answer in zip(again, repeated, strict=True):
            found[index] = self._parsed(answer, read_query_reply)
        return [self._next(query, reply) for query, reply in zip(queries, found, strict=True)]

    def distil(self, transcripts: Sequence[Transcript]) -> list[str | None]:
        """Return one skill an episode; None where there is no turn, no reply, or none that can be read.

        Raises:
            TeacherError: Not one request of this teacher has been answered.
        """
        places = [place for place, one in enumerate(transcripts) if one.turns]
        wording = self.environment.teacher_wording
        asks = [Ask(wording.skill_prompt(told(transcripts[place]))) for place in places]
        replies = [self._parsed(answer, read_skill_reply) for answer in self._ask(asks)]
        again = [index for index, reply in enumerate(replies) if isinstance(reply, Unreadable)]
        repeated = self._ask([_again(asks[index], replies[index]) for index in again])
        for index, answer in zip(again, repeated, strict=True):
            replies[index] = self._parsed(answer, read_skill_reply)
        found: list[str | None] = [None] * len(transcripts)
        for place, ask, reply in zip(places, asks, replies, strict=True):
            if isinstance(reply, str):
                copied = _bare(reply) in placeholders(ask.prompt)
                self._copied += copied
                found[place] = None if copied else reply
        return found

    def _ask(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = self.chat.ask(asks) if asks else []
        failures = [answer.failure for answer in answers if answer.text is None]
        self._answered += len(answers) - len(failures)
        if failures and not self._answered:
            raise TeacherError(
                f"none of {len(answers)} requests to the teacher was answered; the first one: {failures[0]}",
                where=self.chat.where,
                mend="check the teacher's address, model and limits, then run the same command again",
            )
        return answers

    def _label_ask(self, transcript: Transcript) -> Ask:
        wording, episode = self.environment.teacher_wording, told(transcript)
        return Ask(
            wording.label_prompt(episode, self.max_candidates, "blocks"),
            wording.label_prompt(episode, self.max_candidates, "json"),
            label_schema(self.max_candidates),
        )

    def _analysis_ask(self, transcript: Transcript) -> Ask:
        wording = self.environment.teacher_wording
        return Ask(wording.analysis_prompt(told(transcript), self.max_candidates))

    def _parsed(self, answer: Answer, read: Callable[[str], T]) -> T | Unreadable | None:
        """Return the reply, what is wrong with it, or None where there is none."""
        if answer.text is None:
            return None
        self._cut += answer.cut
        try:
            return read(answer.text)
        except Unreadable as reason:
            self._unreadable += 1
            return Unreadable(f"{reason}: it was cut at teacher.reply_tokens") if answer.cut else reason

    def _reading(
        self, transcript: Transcript, answer: Answer, reply: LabelReply | Unreadable | None
    ) -> Reading:
        prompt_hash = hashlib.sha256(answer.prompt.encode("utf-8", "backslashreplace")).hexdigest()
        raw = None if answer.text is None else well_formed(answer.text)
        if not isinstance(reply, LabelReply):
            self._unread += 1
            why = well_formed(str(reply) if reply is not None else answer.failure or "no reply")
            return Reading((), prompt_hash=prompt_hash, raw_reply=raw, unread=why)
        reply = self._without_copies(reply, answer.prompt)
        return Reading(
            self._candidates(reply, transcript.turns),
            reply.episode_lesson,
            prompt_hash,
            raw,
            reply.episode_summary,
            reply.step_lessons,
        )

    def _without_copies(self, reply: LabelReply, prompt: str) -> LabelReply:
        """Leave out what is copied from the form that the prompt shows: such a lesson says nothing."""
        shown = placeholders(prompt)
        own = [pair for pair in reply.step_lessons if _bare(pair[1]) not in shown]
        changed: dict[str, object] = {"step_lessons": tuple(own)}
        self._copied += len(reply.step_lessons) - len(own)
        for name in ("episode_summary", "episode_lesson"):
            if _bare(getattr(reply, name) or "") in shown:
                self._copied += 1
                changed[name] = None
        return reply.model_copy(update=changed)

    def _candidates(self, reply: LabelReply, turns: Sequence[Turn]) -> tuple[Candidate, ...]:
        candidates = []
        for step, written in reply.correct_actions:
            if step >= len(turns):
                self._ineligible += 1
                continue
            candidates.append(Candidate(step, written, self._resolve(written, turns[step].admissible)))
        return tuple(candidates)

    def _next(self, query: Query, reply: str | Unreadable | None) -> str | None:
        if not isinstance(reply, str):
            self._silent += 1
            return None
        return self._resolve(reply, query.view.admissible)

    def _resolve(self, written: str, admissible: Sequence[str] | None) -> str | None:
        action = resolve(written, admissible, self.environment.wording.normal_form)
        self._unresolved += action is None
        return action


def placeholders(prompt: str) -> frozenset[str]:
    """Return the texts that stand for a value where a prompt shows the form of its JSON."""
    return frozenset(_bare(text) for text in _SHOWN.findall(prompt))


def _bare(sentence: str) -> str:
    return sentence.strip(" .").lower()


def _again(ask: Ask, reason: object) -> Ask:
    """Return a request once more: another text, so that no cache answers it, with the same beginning."""
    added = _AGAIN.format(reason=reason)
    json_prompt = None if ask.json_prompt is None else ask.json_prompt + added
    return replace(ask, prompt=ask.prompt + added, json_prompt=json_prompt)
