from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pivotopd.models.base import ScoreRequest
from pivotopd.models.batching import TokenBatch, pack_rows
from pivotopd.models.checkpoint import Policy
from pivotopd.models.logprobs import response_logprobs
from tests.models.conftest import small_policy


def _batch(vocabulary: int) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    rows = [
        ScoreRequest(*(torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths))
        for lengths in ((5, 30), (17, 9), (3, 25), (8, 0))
    ]
    return pack_rows(rows, range(len(rows)))


def _naive(model: Any, batch: TokenBatch) -> torch.Tensor:
    """Every logit of every position, from the model's own forward, one row at a time without padding."""
    parts = []
    for ids, mask, length in zip(batch.input_ids, batch.attention_mask, batch.response_lengths, strict=True):
        row = ids[: int(mask.sum())]
        logprobs = torch.log_softmax(model(input_ids=row[None]).logits[0].float(), dim=-1)
        for place in range(len(row) - length, len(row)):
            parts.append(logprobs[place - 1, row[place]])
    return torch.stack(parts)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 64, 1000])
def test_value_and_gradient_equal_the_naive_form(policy: Policy, chunk_tokens: int) -> None:
    model, batch = policy.model, _batch(len(policy.tokenizer))
    weights = torch.linspace(-1, 1, len(batch.targets))
    grads = []
    values = []
    for compute in (lambda: _naive(model, batch), lambda: response_logprobs(model, batch, chunk_tokens)):
        model.zero_grad()
        value = compute()
        (value * weights).mean().backward()
        values.append(value.detach())
        grads.append({name: p.grad.clone() for name, p in model.named_parameters()})
    model.zero_grad()
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=1e-5)
    assert values[1].dtype == torch.float32
    for name, grad in grads[0].items():
        torch.testing.assert_close(
            grads[1][name], grad, rtol=1e-4, atol=1e-6 + 1e-5 * float(grad.abs().max())
        )


class _Largest:
    """The largest tensor that autograd saves."""

    def __init__(self) -> None:
        self.saved = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.saved = max(self.saved, tensor.numel())
        return tensor


@pytest.mark.parametrize(("chunk_tokens", "bounded"), [(8, True), (1000, False)])
def test_no_matrix_of_tokens_by_vocabulary(policy: Policy, chunk_tokens: int, bounded: bool) -> None:
    """Neither saved for backward nor made for a moment; the unchunked case shows that the probe sees it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for item in result if isinstance(result, tuple | list) else [result]:
                if (
                    isinstance(item, torch.Tensor)
                    and item.shape[-1:] == (vocabulary,)
                    and item.shape != (hidden, vocabulary)  # the head's weight, transposed
                ):
                    self.largest = max(self.largest, item.numel())
            return result

    model, vocabulary = policy.model, len(policy.tokenizer)
    hidden = model.config.hidden_size
    batch = _batch(vocabulary)
    whole, saved = len(batch.targets) * vocabulary, _Largest()
    with Watch() as watch, torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        response_logprobs(model, batch, chunk_tokens).sum().backward()
    model.zero_grad()
    limit = chunk_tokens * vocabulary if bounded else whole
    assert watch.largest == limit
    assert (saved.saved < whole) is bounded
    with Watch() as watch, torch.inference_mode():
        response_logprobs(model, batch, chunk_tokens)
    assert watch.largest == limit


def test_uniform_model_gives_log_vocabulary() -> None:
    policy = small_policy()
    for parameter in policy.model.parameters():
        parameter.data.zero_()
    values = response_logprobs(policy.model, _batch(len(policy.tokenizer)))
    torch.testing.assert_close(values, torch.full_like(values, -math.log(len(policy.tokenizer))))


def test_padding_and_order_do_not_matter(policy: Policy) -> None:
    vocabulary = len(policy.tokenizer)
    rows = [ScoreRequest([5, 6, 7], [8, 9]), ScoreRequest(list(range(3, 40)), [vocabulary - 1])]
    together = pack_rows(rows, [0, 1])
    with torch.inference_mode():
        first, second = together.split(response_logprobs(policy.model, together))
        for row, value in ((0, first), (1, second)):
            alone = response_logprobs(policy.model, pack_rows(rows, [row]))
            torch.testing.assert_close(value, alone, rtol=1e-5, atol=1e-5)
