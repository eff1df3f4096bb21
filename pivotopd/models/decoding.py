"""Decoding with a transformers model: a batch whose rows leave and enter each on its own.

Legend: B rows of the batch, free ones included, T longest response, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from pivotopd.errors import NumericsError
from pivotopd.ledger import Counts
from pivotopd.models.base import (
    Completion,
    FinishReason,
    Request,
    Sampling,
    ScoreRequest,
    generation_counts,
)
from pivotopd.models.batching import TokenBatch, micro_batches
from pivotopd.models.checkpoint import Policy
from pivotopd.models.devices import GENERATION_NEEDS, memory_for
from pivotopd.models.kv_cache import GROW_SLOTS, SlotCache
from pivotopd.models.repeats import repeats_of
from pivotopd.models.sampling import draw, uniforms_of

WHOLE_KEEP_SHARE, KEEP_SHARE = 0.75, 0.5
"""Idle rows leave the batch once at most this share of it is written, which costs a copy; where prompts may
take their place, they stay longer."""

WAIT_STEPS = 16
"""Steps that a complete response waits for others: prompts that come in together cost less to read."""


@dataclass
class _Rows:
    """What there is of every row; a free one holds what it last was.

    Attributes:
        tokens: (B, T) int64, what was drawn.
        nats: (B, T) float32, log-probabilities of it.
        uniforms: (B, T) float64, what it is drawn with.
        count: (B,) int64, tokens drawn.
        positions: (B,) int64, where the next token goes that is fed.
        running: (B,) bool, whether it is being written.
        stopped: (B,) bool, whether an end token was drawn.
        logits: (B, V), of what follows.
    """

    tokens: Tensor
    nats: Tensor
    uniforms: Tensor
    count: Tensor
    positions: Tensor
    running: Tensor
    stopped: Tensor
    logits: Tensor

    @classmethod
    def none(cls, longest: int, logits: Tensor) -> _Rows:
        """Return no rows, for responses of at most T tokens and logits like (any, V) ones."""
        whole = partial(torch.zeros, dtype=torch.int64, device=logits.device)
        flag = partial(torch.zeros, 0, dtype=torch.bool, device=logits.device)
        return cls(
            tokens=whole((0, longest)),
            nats=torch.zeros((0, longest), dtype=torch.float32, device=logits.device),
            uniforms=torch.zeros((0, longest), dtype=torch.float64, device=logits.device),
            count=whole(0),
            positions=whole(0),
            running=flag(),
            stopped=flag(),
            logits=logits[:0],
        )

    def __len__(self) -> int:
        return len(self.count)

    def keep(self, rows: Tensor) -> None:
        """Have only the rows at the given (B',) indices."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name)[rows])

    def grow(self, more: int) -> None:
        """Have more rows, free ones."""
        for one in fields(self):
            there: Tensor = getattr(self, one.name)
            setattr(self, one.name, torch.cat([there, there.new_zeros((more, *there.shape[1:]))]))


@dataclass
class _Asked:
    """A request that has a row.

    Attributes:
        key: Of who asked.
        request: The request.
        cached_tokens: Tokens of its prompt that were read for another row.
        start: The length of its prompt less the steps that had been made when it came in.
    """

    key: int
    request: Request
    cached_tokens: int
    start: int


@dataclass
class Decoding:
    """Responses under way; an :class:`pivotopd.models.in_flight.InFlight`.

    Args:
        policy: Model and tokenizer.
        sampling: How tokens are drawn.
        max_rows: Most rows that decode together.
        pass_tokens: Most positions (padding included) of a pass over prompts.
        check: Refuses requests that do not fit the model.
        report: Told what was computed.
        whole: Prompts come in only where nothing is written, and responses leave together.
    """

    policy: Policy
    sampling: Sampling
    max_rows: int
    pass_tokens: int
    check: Callable[[Sequence[Request], Sampling], None]
    report: Callable[[Counts], None]
    whole: bool = False
    _waiting: dict[int, Request] = field(default_factory=dict)
    _complete: dict[int, tuple[Request, Completion]] = field(default_factory=dict)
    _asked: list[_Asked | None] = field(default_factory=list)
    _rows: _Rows | None = None
    _cache: SlotCache | None = None
    _clock: int = 0

    def send(self, requests: Mapping[int, Request]) -> None:
        """Add requests, under keys that nothing in flight has.

        Raises:
            ConfigError: The sampling settings or a prompt's length do not fit the model.
        """
        self.check(list(requests.values()), self.sampling)
        self._waiting.update(requests)
        self.report(Counts(rounds=int(bool(requests))))

    def land(self) -> dict[int, Completion]:
        """Wait until some responses are complete and return them, keys ascending.

        Raises:
            NumericsError: The model's logits are not finite; names the key.
            ConfigError: The accelerator's memory is too small.
        """
        with memory_for("generation", GENERATION_NEEDS), torch.inference_mode():
            self._admit()
            waited = 0
            while alive := self._draw():
                waited += alive < sum(one is not None for one in self._asked) or bool(self._complete)
                self._make_room(alive)
                self._step(alive)
                if waited > WAIT_STEPS and not self.whole:
                    break
            self._collect()
        landed, self._complete = self._complete, {}
        found = {key: landed[key] for key in sorted(landed)}
        counts = generation_counts([one for one, _ in found.values()], [one for _, one in found.values()])
        self.report(replace(counts, rounds=0))  # a round is counted where it was sent
        return {key: completion for key, (_, completion) in found.items()}

    def close(self) -> None:
        """Give up what is in flight."""
        self._waiting, self._complete, self._asked = {}, {}, []
        self._rows = self._cache = None

    def _admit(self) -> None:
        """Read the prompts that wait, as far as there is room; equal ones once."""
        written = sum(one is not None for one in self._asked)
        if not self._waiting or (self.whole and written):
            return
        by_length = [(len(request.prompt_ids), key) for key, request in self._waiting.items()]
        room = self.max_rows - written
        entering = sorted(sorted(by_length)[:room] if self.whole else by_length[:room])
        if not entering:
            return
        asked = [(key, self._waiting.pop(key)) for _, key in entering]
        repeats = repeats_of([tuple(request.prompt_ids) for _, request in asked])
        longest = entering[-1][0]
        places = self._places(len(asked), longest)
        distinct = torch.tensor([places[first] for first in repeats.firsts], device=self._device)
        logits = self._read([asked[first][1] for first in repeats.firsts], distinct)
        rows, cache = self._table(logits), self._cache
        assert cache is not None  # noqa: S101 - there are places
        if repeats.any:
            later = torch.tensor([places[index] for index in repeats.later], device=self._device)
            first = torch.tensor([repeats.kinds[index] for index in repeats.later], device=self._device)
            cache.copy(distinct[first], later, longest)
        at = torch.tensor(places, device=self._device)
        rows.logits[at] = logits[torch.tensor(repeats.kinds, device=self._device)]
        seeds = [request.seed for _, request in asked]
        rows.uniforms[at] = uniforms_of(seeds, self.sampling.max_tokens).to(self._device)
        rows.positions[at] = torch.tensor([length for length, _ in entering], device=self._device)
        rows.count[at], rows.running[at], rows.stopped[at] = 0, True, False
        known = set(repeats.later)
        for index, (place, (key, request)) in enumerate(zip(places, asked, strict=True)):
            length = len(request.prompt_ids)
            cached = length if index in known else 0
            self._asked[place] = _Asked(key, request, cached, length - self._clock)

    def _places(self, count: int, longest: int) -> list[int]:
        """Return free rows, with room in the cache for prompts and what follows."""
        slots = longest + min(self.sampling.max_tokens, GROW_SLOTS)
        free = [index for index, one in enumerate(self._asked) if one is None]
        more = max(0, count - len(free))
        free += range(len(self._asked), len(self._asked) + more)
        self._asked += [None] * more
        if self._cache is None:
            self._cache = SlotCache(len(self._asked), slots)
        elif more or longest > self._cache.slots:
            self._cache.reserve(len(self._asked), slots)
        return free[:count]

    def _table(self, logits: Tensor) -> _Rows:
        """Return the rows, as many as there are requests with one or free places."""
        if self._rows is None:
            self._rows = _Rows.none(self.sampling.max_tokens, logits)
        if len(self._rows) < len(self._asked):
            self._rows.grow(len(self._asked) - len(self._rows))
        return self._rows

    def _read(self, requests: Sequence[Request], places: Tensor) -> Tensor:
        """Fill rows of the cache with prompts, in bounded passes; return the (B', V) logits after each."""
        assert self._cache is not None  # noqa: S101 - there are places
        prompts = [ScoreRequest(request.prompt_ids, ()) for request in requests]
        logits: list[Tensor] = []
        for batch in micro_batches(prompts, self.pass_tokens):
            # The prompts ascend in length, so the passes keep their order.
            self._cache.start_prefill(places[list(batch.rows)])
            logits.append(self._last_logits(batch.to(self._device)))
            self.report(Counts(padded_tokens=batch.padded_tokens))
        return torch.cat(logits)

    def _last_logits(self, batch: TokenBatch) -> Tensor:
        model = self.policy.model
        states = model.base_model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        last = batch.attention_mask.sum(dim=1) - 1
        rows = torch.arange(len(last), device=last.device)
        logits: Tensor = model.get_output_embeddings()(states[rows, last])
        return logits

    def _draw(self) -> int:
        """Draw each running row's next token; return how many go on."""
        rows = self._rows
        if rows is None or not len(rows):
            return 0
        limit = self.sampling.max_tokens
        every = torch.arange(len(rows), device=self._device)
        uniforms = rows.uniforms[every, rows.count.clamp(max=limit - 1)]
        tokens, nats = draw(rows.logits, self.sampling.temperature, uniforms)
        running = rows.running.nonzero().squeeze(1)
        self._check_finite(nats, rows.running)
        places = rows.count[running]
        rows.tokens[running, places], rows.nats[running, places] = tokens[running], nats[running]
        rows.count += rows.running
        ended = rows.running & (tokens[:, None] == self._stops).any(dim=1)
        rows.stopped |= ended
        rows.running &= ~ended & (rows.count < limit)
        return int(rows.running.sum())

    def _make_room(self, alive: int) -> None:
        """Let idle rows leave the batch where they are many."""
        rows = self._rows
        assert rows is not None and self._cache is not None  # noqa: S101, PT018 - some row runs
        if alive > len(rows) * (WHOLE_KEEP_SHARE if self.whole else KEEP_SHARE):
            return
        self._collect()
        kept = rows.running.nonzero().squeeze(1)
        self._cache.keep(kept)
        rows.keep(kept)
        self._asked = [self._asked[index] for index in kept.tolist()]

    def _step(self, alive: int) -> None:
        """Feed each running row's last token."""
        rows, cache, model = self._rows, self._cache, self.policy.model
        assert rows is not None and cache is not None  # noqa: S101, PT018 - some row runs
        self.report(Counts(idle_tokens=len(rows) - alive))
        # An idle row feeds its first slot, which it does not need any more.
        positions = torch.where(rows.running, rows.positions, 0)
        used = self._clock + max(one.start for one in self._asked if one is not None) + 1
        cache.start_step(positions, used)
        last = rows.tokens.gather(1, (rows.count[:, None] - 1).clamp(min=0))
        states = model.base_model(
            input_ids=last,
            attention_mask=cache.mask(model.dtype),
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        rows.logits = model.get_output_embeddings()(states[:, 0])
        rows.positions += rows.running
        self._clock += 1

    def _collect(self) -> None:
        """Take complete responses out of their rows, which are free then."""
        rows = self._rows
        if rows is None:
            return
        running, stopped = rows.running.tolist(), rows.stopped.tolist()
        done = [index for index, one in enumerate(self._asked) if one is not None and not running[index]]
        if not done:
            return
        ids = rows.tokens[done].cpu().numpy().astype(np.int32)
        nats, counts = rows.nats[done].cpu().numpy(), rows.count[done].tolist()
        for index, tokens, values, count in zip(done, ids, nats, counts, strict=True):
            asked, self._asked[index] = self._asked[index], None
            assert asked is not None  # noqa: S101 - just looked at
            reason: FinishReason = "stop" if stopped[index] else "length"
            self._complete[asked.key] = (
                asked.request,
                Completion(tokens[:count].copy(), values[:count].copy(), reason, asked.cached_tokens),
            )

    def _check_finite(self, nats: Tensor, running: Tensor) -> None:
        bad = ~torch.isfinite(nats) & running
        if not bool(bad.any()):
            return
        asked = self._asked[int(bad.nonzero()[0])]
        raise NumericsError(
            f"the model's logits are not finite for request {asked.key if asked else None}",
            mend="the weights have diverged: go back to an earlier checkpoint, lower the learning rate",
        )

    @cached_property
    def _device(self) -> torch.device:
        device: torch.device = self.policy.model.get_input_embeddings().weight.device
        return device

    @cached_property
    def _stops(self) -> Tensor:
        return torch.tensor(self.policy.stop_ids, device=self._device)
