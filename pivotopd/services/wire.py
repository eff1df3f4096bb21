"""The wire form of what a policy engine is asked and answers: arrays, bit for bit as they are in memory.

A message is an npz of flat arrays and the lengths that cut them into rows. Ids are int32, nats float32 and
seeds int64, so a result that came over a wire equals the one computed in process. Nothing is unpickled.

Legend: B rows, N ids of all rows together.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pivotopd.errors import ConfigError, EngineFault
from pivotopd.models.base import (
    Completion,
    Nats,
    Request,
    Sampling,
    ScoreRequest,
    TokenDistributions,
    TokenIds,
)

Arrays = dict[str, npt.NDArray[Any]]
_Row = TypeVar("_Row")


def pack_requests(requests: Sequence[Request], sampling: Sampling) -> bytes:
    """Return prompts to continue as one message."""
    return _pack(_request_rows(requests, sampling))


def unpack_requests(message: bytes) -> tuple[list[Request], Sampling]:
    """Return the prompts of a message; EngineFault when it is not one."""
    return _requests(_unpack(message))


def pack_sent(requests: Mapping[int, Request], sampling: Sampling) -> bytes:
    """Return prompts that are sent into a flight, under their keys, as one message."""
    return _pack(_request_rows(list(requests.values()), sampling) | _keys(requests))


def unpack_sent(message: bytes) -> tuple[dict[int, Request], Sampling]:
    """Return the prompts of a message by their keys; EngineFault when it is not one."""
    arrays = _unpack(message)
    requests, sampling = _requests(arrays)
    return _keyed(arrays, requests), sampling


def pack_landed(landed: Mapping[int, Completion]) -> bytes:
    """Return responses that have landed, under their keys, as one message."""
    return _pack(_completion_rows(list(landed.values())) | _keys(landed))


def unpack_landed(message: bytes) -> dict[int, Completion]:
    """Return the responses of a message by their keys; EngineFault when it is not one."""
    arrays = _unpack(message)
    return _keyed(arrays, _completions(arrays))


def _keys(rows: Iterable[int]) -> Arrays:
    return {"keys": np.array(list(rows), np.int64)}


def _keyed(arrays: Arrays, rows: Sequence[_Row]) -> dict[int, _Row]:
    keys = _array(arrays, "keys", np.int64).tolist()
    if len(set(keys)) != len(keys) or len(keys) != len(rows):
        raise _damaged("keys do not fit the rows")
    return dict(zip(keys, rows, strict=True))


def _request_rows(requests: Sequence[Request], sampling: Sampling) -> Arrays:
    return _rows("prompt", _ids([request.prompt_ids for request in requests]), np.int32) | {
        "seeds": np.array([request.seed for request in requests], np.int64),
        "temperature": np.float64(sampling.temperature).reshape(1),
        "max_tokens": np.array([sampling.max_tokens], np.int64),
    }


def _requests(arrays: Arrays) -> tuple[list[Request], Sampling]:
    prompts, seeds = _cut(arrays, "prompt", np.int32), _array(arrays, "seeds", np.int64)
    temperature, longest = _array(arrays, "temperature", np.float64), _array(arrays, "max_tokens", np.int64)
    if len(seeds) != len(prompts) or len(temperature) != 1 or len(longest) != 1:
        raise _damaged("seeds or sampling settings do not fit the prompts")
    requests = [Request(ids.tolist(), int(seed)) for ids, seed in zip(prompts, seeds, strict=True)]
    return requests, Sampling(float(temperature[0]), int(longest[0]))


def pack_completions(completions: Sequence[Completion]) -> bytes:
    """Return sampled responses as one message."""
    return _pack(_completion_rows(completions))


def unpack_completions(message: bytes) -> list[Completion]:
    """Return the responses of a message; EngineFault when it is not one."""
    return _completions(_unpack(message))


def _completion_rows(completions: Sequence[Completion]) -> Arrays:
    return (
        _rows("response", [completion.response_ids for completion in completions], np.int32)
        | _rows("nats", [completion.logprobs_nats for completion in completions], np.float32)
        | {
            "stopped": np.array([completion.finish_reason == "stop" for completion in completions], np.bool_),
            "cached_tokens": np.array([completion.cached_tokens for completion in completions], np.int64),
        }
    )


def _completions(arrays: Arrays) -> list[Completion]:
    ids, nats = _cut(arrays, "response", np.int32), _cut(arrays, "nats", np.float32)
    stopped, cached = _array(arrays, "stopped", np.bool_), _array(arrays, "cached_tokens", np.int64)
    fits = len(ids) == len(nats) == len(stopped) == len(cached)
    if not fits or any(len(row) != len(other) for row, other in zip(ids, nats, strict=True)):
        raise _damaged("log-probabilities do not fit the responses")
    return [
        Completion(row, logprobs, "stop" if end else "length", int(known))
        for row, logprobs, end, known in zip(ids, nats, stopped, cached, strict=True)
    ]


def pack_score_requests(requests: Sequence[ScoreRequest]) -> bytes:
    """Return responses to score, with their prompts, as one message."""
    return _pack(_scored_rows(requests))


def unpack_score_requests(message: bytes) -> list[ScoreRequest]:
    """Return the responses to score of a message; EngineFault when it is not one."""
    return _score_requests(_unpack(message))


def pack_scores(scores: Sequence[Nats]) -> bytes:
    """Return the log-probabilities of scored responses as one message."""
    return _pack(_rows("nats", scores, np.float32))


def unpack_scores(message: bytes) -> list[Nats]:
    """Return the log-probabilities of a message; EngineFault when it is not one."""
    return _cut(_unpack(message), "nats", np.float32)


def pack_distribution_requests(requests: Sequence[ScoreRequest], top_tokens: int | None) -> bytes:
    """Return responses to score, and how many of each token's likeliest ids are asked for (None: all)."""
    wanted = np.array([] if top_tokens is None else [top_tokens], np.int64)
    return _pack(_scored_rows(requests) | {"top_tokens": wanted})


def unpack_distribution_requests(message: bytes) -> tuple[list[ScoreRequest], int | None]:
    """Return the same of a message; EngineFault when it is not one."""
    arrays = _unpack(message)
    wanted = _array(arrays, "top_tokens", np.int64)
    if len(wanted) > 1:
        raise _damaged("top_tokens is not one number")
    return _score_requests(arrays), int(wanted[0]) if len(wanted) else None


def pack_distributions(scored: Sequence[tuple[Nats, TokenDistributions]]) -> bytes:
    """Return log-probabilities and each token's likeliest ids as one message."""
    return _pack(
        _rows("nats", [nats for nats, _ in scored], np.float32)
        | _rows("ids", [held.ids.ravel() for _, held in scored], np.int32)
        | _rows("top", [held.nats.ravel() for _, held in scored], np.float32)
    )


def unpack_distributions(message: bytes) -> list[tuple[Nats, TokenDistributions]]:
    """Return the same of a message; EngineFault when it is not one."""
    arrays = _unpack(message)
    nats, ids = _cut(arrays, "nats", np.float32), _cut(arrays, "ids", np.int32)
    top = _cut(arrays, "top", np.float32)
    if not len(nats) == len(ids) == len(top):
        raise _damaged("distributions do not fit the responses")
    found = []
    for row, row_ids, row_top in zip(nats, ids, top, strict=True):
        width = len(row_ids) // len(row) if len(row) else 0
        if not len(row_ids) == len(row_top) == len(row) * width:
            raise _damaged("distributions do not fit the responses")
        held = TokenDistributions(row_ids.reshape(len(row), width), row_top.reshape(len(row), width))
        found.append((row, held))
    return found


def _scored_rows(requests: Sequence[ScoreRequest]) -> Arrays:
    prompts = _ids([request.prompt_ids for request in requests])
    responses = _ids([request.response_ids for request in requests])
    return _rows("prompt", prompts, np.int32) | _rows("response", responses, np.int32)


def _score_requests(arrays: Arrays) -> list[ScoreRequest]:
    prompts, responses = _cut(arrays, "prompt", np.int32), _cut(arrays, "response", np.int32)
    if len(prompts) != len(responses):
        raise _damaged("responses do not fit the prompts")
    return [ScoreRequest(p.tolist(), r.tolist()) for p, r in zip(prompts, responses, strict=True)]


def _ids(rows: Sequence[Sequence[int]]) -> list[TokenIds]:
    try:
        return [np.asarray(row, np.int32) for row in rows]
    except OverflowError as error:
        raise ConfigError(
            "a token id needs more than 32 bits: it is in no model's vocabulary",
            mend="use the tokenizer of the model that is asked",
        ) from error


def _rows(name: str, rows: Sequence[TokenIds] | Sequence[Nats], dtype: type[np.generic]) -> Arrays:
    """Return B ragged rows as N flat values and B lengths."""
    flat = np.concatenate([np.zeros(0, dtype), *rows])
    return {
        name: flat.astype(dtype, copy=False),
        f"{name}_lengths": np.array([len(r) for r in rows], np.int64),
    }


def _cut(arrays: Arrays, name: str, dtype: type[np.generic]) -> list[npt.NDArray[Any]]:
    flat, lengths = _array(arrays, name, dtype), _array(arrays, f"{name}_lengths", np.int64)
    if (lengths < 0).any() or int(lengths.sum()) != len(flat):
        raise _damaged(f"the lengths of {name} do not add up")
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _array(arrays: Arrays, name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    found = arrays.get(name)
    if found is None or found.dtype != np.dtype(dtype) or found.ndim != 1:
        raise _damaged(f"{name} is missing or of another type")
    return found


def _pack(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpack(message: bytes) -> Arrays:
    try:
        with np.load(io.BytesIO(message), allow_pickle=False) as loaded:
            arrays = dict(loaded.items())
    except (ValueError, EOFError, OSError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise _damaged(f"{type(error).__name__}: it cannot be read") from error
    if not all(isinstance(one, np.ndarray) for one in arrays.values()):  # numpy gives other files as bytes
        raise _damaged("it holds something other than arrays")
    return arrays


def _damaged(why: str) -> EngineFault:
    return EngineFault(
        f"a message of a policy engine is damaged: {why}",
        mend="see that the address is one of this program's servers, of the same version",
    )
