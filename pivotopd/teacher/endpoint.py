"""A language model behind an OpenAI-compatible endpoint: many requests at once, each asked and paid for once.

What may pass is tried again with growing pauses, or the pause that the server asks for; what concerns one
request fails that request; what concerns all ends the stage. Answers are kept on disk. The key is read from
the environment at the first request, goes into one header, and is taken out of every text that is passed on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
)

from pivotopd.errors import ConfigError, TeacherError
from pivotopd.ledger import Counts
from pivotopd.manifest import canonical_json
from pivotopd.teacher.chat import Answer, Ask
from pivotopd.teacher.reply_cache import ReplyCache, StoredReply
from pivotopd.teacher.wire import (
    Dialect,
    Fatal,
    Received,
    Refused,
    Transient,
    Unreachable,
    body_of,
    read_response,
)
from pivotopd.teacher_section import EndpointSection

LONGEST_WAIT_S: Final = 60.0
CONNECT_S: Final = 10.0
REACH_TRIES: Final = 3
"""Tries of the first connection: a server that is down is told at once, not after every retry."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that no cache answers: as plain text, and for a JSON reply where that may be asked for."""

    plain: dict[str, Any]
    json: dict[str, Any] | None


@dataclass
class EndpointChat:
    """Answers by HTTP.

    Args:
        section: The teacher's section.
        cache: Answered requests.
        first_wait_s: First pause before another try; it doubles from try to try.
    """

    section: EndpointSection
    cache: ReplyCache
    first_wait_s: float = 1.0
    name: str = field(init=False)
    where: str = field(init=False)
    calls: int = 0
    cached: int = 0
    retries: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    reply_tokens: int = 0
    _dialect: Dialect = field(default_factory=Dialect)
    _reached: bool = False
    _key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Name the teacher by its model."""
        self.name, self.where = f"endpoint {self.section.model}", self.section.base_url

    @property
    def spent(self) -> Counts:
        """Calls that were answered, answers found, tries again, requests given up, tokens and their cost.

        Tokens are the server's own count. Prices are for a million tokens, so tokens times price is the cost
        in millionths of the currency's unit.
        """
        prices = (self.section.price_input, self.section.price_output)
        cost = self.prompt_tokens * (prices[0] or 0.0) + self.reply_tokens * (prices[1] or 0.0)
        return Counts(
            teacher_calls=self.calls,
            teacher_cached=self.cached,
            teacher_retries=self.retries,
            teacher_failed=self.failed,
            teacher_prompt_tokens=self.prompt_tokens,
            teacher_cached_prompt_tokens=self.cached_prompt_tokens,
            teacher_reply_tokens=self.reply_tokens,
            teacher_cost_millionths=None if prices == (None, None) else round(cost),
        )

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Return one answer a request, in order; equal requests are asked once.

        Raises:
            TeacherError: The endpoint cannot be reached, or takes no request of ours.
            ConfigError: The environment variable of the key is not set.
            StorageError: The cache cannot be read or written.
        """
        waiting = [self._waiting(one) for one in asks]
        answers: dict[str, Answer] = {}
        missing: dict[str, _Waiting] = {}
        for one in waiting:
            key = canonical_json(one.plain)
            if key in answers or key in missing:
                self.cached += 1
                continue
            stored = self._stored(one)
            if stored is None:
                missing[key] = one
            else:
                self.cached += 1
                answers[key] = Answer(_message(stored.request), stored.text, cut=stored.cut)
        if missing:
            self._key = self._read_key()
            found = asyncio.run(self._answer_all(list(missing.values())))
            answers |= zip(missing, found, strict=True)
        return [answers[canonical_json(one.plain)] for one in waiting]

    def _waiting(self, ask: Ask) -> _Waiting:
        wants_json = self.section.structured == "auto" and ask.json_prompt is not None
        return _Waiting(
            self._request(ask.prompt, None, ask.sample),
            self._request(ask.json_prompt or "", ask.schema, ask.sample) if wants_json else None,
        )

    def _request(self, message: str, schema: Mapping[str, Any] | None, sample: int) -> dict[str, Any]:
        """Return what decides an answer: the cache's key, and what the body is made of.

        The number of a further draw is in the key alone; the first draw's key is that of training.
        """
        request = {
            "model": self.section.model,
            "messages": [{"role": "user", "content": message}],
            "temperature": self.section.temperature,
            "reply_tokens": self.section.reply_tokens,
            "schema": None if schema is None else dict(schema),
        }
        return {**request, "sample": sample} if sample else request

    def _stored(self, waiting: _Waiting) -> StoredReply | None:
        stored = None if waiting.json is None else self.cache.get(waiting.json)
        return stored or self.cache.get(waiting.plain)

    def _read_key(self) -> str:
        name = self.section.api_key_variable
        if name is None:
            return ""
        key = os.environ.get(name, "").strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            state = "holds no key that a header can carry" if key else "is not set"
            raise ConfigError(
                f"the environment variable {name} {state}",
                where="teacher.api_key_variable",
                mend=f"export {name}=... before the command, or set teacher.api_key_variable=null",
            )
        return key

    async def _answer_all(self, waiting: Sequence[_Waiting]) -> list[Answer]:
        """Answer requests, at most ``concurrency`` at once; the first fatal error ends them all."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limit = asyncio.Semaphore(self.section.concurrency)
        timeout = httpx.Timeout(self.section.timeout_s, connect=min(CONNECT_S, self.section.timeout_s))
        limits = httpx.Limits(max_connections=self.section.concurrency)
        async with httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits) as client:
            await self._reach(client)
            tasks = [asyncio.create_task(self._answer(client, limit, one)) for one in waiting]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _reach(self, client: httpx.AsyncClient) -> None:
        """Check once that something listens; any response will do."""
        if self._reached:
            return
        for number in range(1, REACH_TRIES + 1):
            try:
                await client.get(f"{self.section.base_url}/models")
                break
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if number == REACH_TRIES:
                    raise self._gone(_named(error)) from None
                await asyncio.sleep(self.first_wait_s)
            except httpx.RequestError:
                break  # it listens; what is wrong shows at the first request
        self._reached = True

    async def _answer(self, client: httpx.AsyncClient, limit: asyncio.Semaphore, one: _Waiting) -> Answer:
        async with limit:
            request = one.plain
            try:
                while True:
                    dialect = self._dialect
                    request = one.json if one.json is not None and dialect.schema else one.plain
                    try:
                        received = await self._persist(client, request, dialect)
                        break
                    except Refused as refusal:
                        if self._dialect == dialect:  # else another request has learned what to change
                            self._dialect = dialect.adapted(str(refusal), request["schema"] is not None)
                        if self._dialect == dialect:
                            raise
            except Unreachable as failure:  # a server that has gone away would leave all the rest unread
                raise self._gone(str(failure)) from None
            except (Transient, Refused) as failure:
                self.failed += 1
                return Answer(_message(request), None, self._clean(str(failure)))
            except Fatal as failure:
                raise TeacherError(
                    f"the teacher's server refuses: {self._clean(str(failure))}",
                    where=self.section.base_url,
                    mend=f"check teacher.base_url, teacher.model={self.section.model} and the key",
                ) from None
            self.calls += 1
            self.prompt_tokens += received.prompt_tokens
            self.cached_prompt_tokens += received.cached_tokens
            self.reply_tokens += received.reply_tokens
            if received.text:  # an empty one is asked for again in another run
                await asyncio.to_thread(self.cache.put, _to_store(request, received))
            return Answer(_message(request), received.text, cut=received.cut)

    async def _persist(
        self, client: httpx.AsyncClient, request: Mapping[str, Any], dialect: Dialect
    ) -> Received:
        """Try until there is a reply, the tries are used up, or the next pause would pass the time limit."""
        tries = self.section.retries + 1
        retrying = AsyncRetrying(
            stop=stop_after_attempt(tries) | stop_before_delay(self.section.timeout_s * tries),
            wait=self._pause,
            retry=retry_if_exception_type(Transient),
            reraise=True,
        )
        body = body_of(request, dialect)
        async for attempt in retrying:
            with attempt:
                self.retries += attempt.retry_state.attempt_number > 1
                return await self._try(client, body)
        raise AssertionError("tenacity raises the last failure")

    async def _try(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> Received:
        try:
            async with asyncio.timeout(self.section.timeout_s):  # httpx's own limits are between two bytes
                response = await client.post(f"{self.section.base_url}/chat/completions", json=body)
        except TimeoutError:
            raise Transient(f"no reply within {self.section.timeout_s:g} s") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(_named(error)) from None
        except httpx.RequestError as error:
            raise Transient(_named(error)) from None
        return read_response(response, self._clean)

    def _pause(self, state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome is not None else None
        asked = failure.retry_after_s if isinstance(failure, Transient) else 0.0
        return max(asked, wait_exponential(multiplier=self.first_wait_s, max=LONGEST_WAIT_S)(state))

    def _gone(self, reason: str) -> TeacherError:
        return TeacherError(
            f"nothing answers there: {self._clean(reason)}",
            where=self.section.base_url,
            mend="start the teacher's server, or correct teacher.base_url; the same command goes on",
        )

    def _clean(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _message(request: Mapping[str, Any]) -> str:
    content: str = request["messages"][0]["content"]
    return content


def _to_store(request: Mapping[str, Any], received: Received) -> StoredReply:
    return StoredReply(
        request=dict(request),
        text=received.text,
        prompt_tokens=received.prompt_tokens,
        reply_tokens=received.reply_tokens,
        cut=received.cut,
    )
