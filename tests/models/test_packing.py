"""Packed rows against padded ones and against one row at a time: values and gradients, two architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pivotopd.errors import ConfigError
from pivotopd.models.attention import use_grouped_steps
from pivotopd.models.base import ScoreRequest
from pivotopd.models.batching import TokenBatch, join_rows, pack_rows
from pivotopd.models.logprobs import response_logprobs

TOLERANCE = 1e-5
"""Of a log-probability, and of the gradient against its norm: float32 sums in another order."""
VOCABULARY = 97


def model(kind: str) -> Any:
    """Sharp random weights, so that a token of another row would change a lot."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "tie_word_embeddings": kind == "qwen3",
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "qwen3":
        made = Qwen3ForCausalLM(Qwen3Config(head_dim=8, **sizes))
    else:
        made = LlamaForCausalLM(LlamaConfig(attention_bias=True, **sizes))
    for weight in made.parameters():
        if weight.ndim > 1:
            weight.data *= 8
    made.set_attn_implementation("sdpa")
    return made.eval()


def rows() -> list[ScoreRequest]:
    generator = torch.Generator().manual_seed(1)
    lengths = ((5, 30), (17, 9), (1, 1), (3, 25), (8, 0), (40, 2))
    return [
        ScoreRequest(*(torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in pair))
        for pair in lengths
    ]


def computed(made: Any, batches: list[TokenBatch]) -> tuple[Tensor, Tensor]:
    """Log-probabilities in the order of rows, and the gradient of a weighted sum of them."""
    made.zero_grad()
    found: dict[int, Tensor] = {}
    for batch in batches:
        found |= zip(batch.rows, batch.split(response_logprobs(made, batch, 16)), strict=True)
    values = torch.cat([found[row] for row in sorted(found)])
    (values * torch.linspace(-1, 1, len(values))).mean().backward()
    return values.detach(), torch.cat([weight.grad.flatten() for weight in made.parameters()]).clone()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_packed_is_padded_is_one_at_a_time(kind: str, recompute: bool) -> None:
    made, every = model(kind), rows()
    alone, alone_gradient = computed(made, [pack_rows(every, [row]) for row in range(len(every))])
    use_grouped_steps(made)
    if recompute:
        from pivotopd.learner_setup import recompute_layers

        recompute_layers(made)
    order = [3, 0, 5, 4, 2, 1]
    for batches in ([join_rows(every, order)], [pack_rows(every, order)]):
        values, gradient = computed(made, batches)
        torch.testing.assert_close(values, alone, rtol=TOLERANCE, atol=TOLERANCE)
        assert float((gradient - alone_gradient).norm() / alone_gradient.norm()) < TOLERANCE


def test_a_row_does_not_see_its_neighbours() -> None:
    """The probe of the test above: with plain attention over the same sequence the values differ."""
    made, every = model("qwen3"), rows()
    use_grouped_steps(made)
    batch = join_rows(every, [0, 1])
    with torch.inference_mode():
        packed = response_logprobs(made, batch)
        # positions that go on keep the distances inside a row: only the neighbours are new
        places = torch.arange(batch.input_ids.shape[1])[None]
        mixed = made.model(input_ids=batch.input_ids, position_ids=places, use_cache=False)
        states = mixed.last_hidden_state.flatten(0, 1)[batch.response_positions]
        through = torch.log_softmax(made.lm_head(states), -1).gather(1, batch.targets[:, None]).squeeze(1)
    assert float((packed - through).abs().max()) > 0.1


def test_a_model_with_another_attention_is_refused() -> None:
    made = model("llama")
    made.set_attn_implementation("eager")
    use_grouped_steps(made)
    with pytest.raises(ConfigError, match="eager") as caught:
        response_logprobs(made, join_rows(rows(), [0, 1]))
    assert "update.packing" in str(caught.value)
