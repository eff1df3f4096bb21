"""Token distributions that cannot be kept are refused from the configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from pivotopd.artifacts import RunLayout
from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError
from pivotopd.exits import run_command
from pivotopd.methods.registry import make_method
from pivotopd.methods.sections import GrpoMethod, OpsdMethod, PivotOpdMethod
from pivotopd.models.checkpoint import model_facts
from pivotopd.target_size import MOST_NUMBERS, _most_rows, check_targets
from stages.plan import Plan
from tests.small_student import small_config

ENDPOINT = {"kind": "endpoint", "base_url": "http://localhost:8000/v1", "model": "m"}


def check(config: RunConfig) -> None:
    check_targets(config, make_method(config.method, config.recovery.depth).needs)


def paper(**changes: object) -> RunConfig:
    """The paper's sizes: 16 tasks, 8 episodes of 30 turns, 512 tokens, 64 chains of 2 recoveries."""
    data = {"rollout": {"tasks": 16, "group_size": 8, "response_tokens": 512}, "method": {}}
    return RunConfig.model_validate({**data, **changes})


def needed_rows(config: RunConfig) -> int:
    return _most_rows(config, make_method(config.method, config.recovery.depth).needs)


def test_the_most_rows_by_hand() -> None:
    recoveries, pivots, all_turns = 64 * 2, 128 * 5, 128 * 30
    assert needed_rows(paper()) == recoveries + pivots  # the oracle tells no lesson
    assert needed_rows(paper(teacher=ENDPOINT)) == recoveries + pivots + all_turns
    assert needed_rows(paper(method={"prevention_weight": 0.0})) == recoveries
    assert needed_rows(paper(method={"name": "opsd"})) == all_turns
    assert needed_rows(paper(environment={"max_turns": 3}, method={"recovery_weight": 0})) == 128 * 3


def test_the_paper_s_run_fits_with_likely_tokens_and_not_with_a_large_vocabulary(student: Path) -> None:
    check(paper(method={"estimator": "top_k"}, teacher=ENDPOINT))
    check(paper(method={"estimator": "sampled"}, teacher=ENDPOINT))
    with pytest.raises(ConfigError, match=r"up to 2,121,007,104 .*899 of each of up to 2,359,296") as caught:
        check(paper(method={"estimator": "full"}, teacher=ENDPOINT))  # 2,359,296 = 4,608 rows of 512
    assert caught.value.where == "method.estimator"
    assert f"at most {MOST_NUMBERS // 2_359_296} method.estimator_tokens" in str(caught.value.mend)
    check(small_config(Path("root"), student, method={"estimator": "full"}))


def test_more_tokens_than_the_student_has_are_refused(student: Path) -> None:
    size = model_facts(student).head_rows
    method = {"name": "opsd", "estimator": "top_k", "estimator_tokens": size}
    check(small_config(Path("root"), student, method=method))
    config = small_config(Path("root"), student, method={**method, "estimator_tokens": size + 1})
    with pytest.raises(ConfigError, match=f"the {size + 1} likeliest tokens") as caught:
        check(config)
    assert caught.value.where == "method.estimator_tokens"
    with pytest.raises(ConfigError, match="likeliest tokens"):
        _ = Plan(config, RunLayout("root", "run")).needs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method.estimator=top_k", "method.estimator_tokens=0"], "method.estimator_tokens"),
        (["method.estimator=top_k", "method.estimator_tokens=5000"], "method.estimator_tokens"),
        (["method.estimator=full", "rollout.response_tokens=100000"], "method.estimator"),
        (["method=grpo", "method.estimator=full"], "estimator"),
        (["method.estimator=all"], "method.estimator"),
        (["method.estimator=full", "method.recovery_objective=nll"], "needs estimator=sampled"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_mistake_is_told_before_anything_is_written(
    words: list[str], said: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.cli import app

    arguments = ["train", f"root={tmp_path / 'runs'}", "environment.prompt=compact", *words, *options]
    assert run_command(lambda: app(arguments, standalone_mode=False)) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert not (tmp_path / "runs").exists()


def test_needs_follow_the_estimator() -> None:
    for section in (PivotOpdMethod, OpsdMethod):
        assert make_method(section(), 1).needs.target_tokens == 0
        assert make_method(section(estimator="full"), 1).needs.target_tokens == "all"
        assert make_method(section(estimator="top_k"), 1).needs.target_tokens == 50
        assert make_method(section(estimator="top_k", estimator_tokens=7), 1).needs.target_tokens == 7
    with pytest.raises(ValidationError):
        GrpoMethod.model_validate({"estimator": "full"})
