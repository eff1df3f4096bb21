"""The warm start as a whole, at a size that learns nothing but runs every part."""

from __future__ import annotations

import pytest

from pivotopd.config import RunConfig
from pivotopd.config_files import parse_config
from pivotopd.errors import ConfigError
from pivotopd.models.checkpoint import weights_digest
from pivotopd.warm_start import warm_start

SMALL = {
    "environment": {"prompt": "compact", "max_turns": 4, "history": 2},
    "student": {"kind": "tiny", "layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 64},
    "warm_start": {"games": 12, "steps": 20, "batch_rows": 4, "check_games": 3},
    "rollout": {"response_tokens": 24, "prompt_tokens": 512},
}


def _config(**sections: object) -> RunConfig:
    return parse_config({**SMALL, **sections}, where="test")


def test_the_result_depends_on_the_warm_start_seed_and_not_on_the_runs() -> None:
    told: list[tuple[str, int, int]] = []
    policy, report = warm_start(_config(), lambda *news: told.append(news))
    again, _ = warm_start(_config(seed=9))
    other, _ = warm_start(_config(warm_start={**SMALL["warm_start"], "seed": 1}))
    assert weights_digest(policy.model) == weights_digest(again.model)
    assert weights_digest(policy.model) != weights_digest(other.model)
    assert not policy.model.training
    assert report.demonstrations > 20
    assert 10 < report.prompt_tokens < 100
    assert 8 < report.response_tokens < 16
    assert report.start.games == 3
    assert [phase for phase, done, of in told if done == of] == ["demonstrate", "imitate", "check"]


def test_a_student_that_is_not_tiny_is_refused() -> None:
    with pytest.raises(ConfigError, match="only a tiny student"):
        warm_start(_config(student={"kind": "pretrained", "path": "somewhere"}))


def test_the_full_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="compact"):
        warm_start(_config(environment={"prompt": "full"}))


def test_responses_must_fit() -> None:
    with pytest.raises(ConfigError, match="demonstrated response has"):
        warm_start(_config(rollout={"response_tokens": 4}))


def test_a_share_of_the_demonstrations_shows_skills_and_says_the_same() -> None:
    _, plain = warm_start(_config())
    _, shown = warm_start(_config(warm_start={**SMALL["warm_start"], "skilled_share": 1.0}))
    assert shown.prompt_tokens > plain.prompt_tokens + 7  # at least one mark, spelled in bytes
    assert (shown.demonstrations, shown.response_tokens) == (plain.demonstrations, plain.response_tokens)
