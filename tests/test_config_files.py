"""Whatever is written into a configuration or an override, it loads or is explained in one error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotopd.config_files import load_config, parse_yaml
from pivotopd.errors import ConfigError
from pivotopd.methods.sections import RlsdMethod
from pivotopd.teacher_section import SelfSection

BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""A few lines that stand for 86 million values."""


def refused(text: str | bytes, folder: Path, overrides: list[str] | None = None) -> ConfigError:
    path = folder / "run.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides or [])
    assert caught.value.where
    assert caught.value.mend
    return caught.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2\n", "the key 'seed' is given twice"),
        ("rollout:\n  tasks: 1\n  tasks: 3\n", "the key 'tasks' is given twice"),
        ("seed: 2020-99-99\n", "month must be in 1..12"),
        ("seed: " + "[" * 5_000, "nested too deeply"),
        ("seed: !!python/object/apply:os.system [x]\n", "could not determine a constructor"),
        ("a:\n\tb: 1\n", "cannot start any token"),
        ("seed: 1\n---\nseed: 2\n", "expected a single document"),
        ("[1, 2]\n", "not a mapping"),
        ("hello\n", "not a mapping"),
        (b"\xff\xfe\x00", "cannot read the configuration"),
        ("seed: a\x07b\n", "not valid YAML"),
        ("rollout:\n", "rollout: a section of keys is wanted here"),
        ("rollout: 3\n", "rollout: a section of keys is wanted here"),
        ("update:\n  learning_rate: .nan\n", "update.learning_rate: must be a finite number"),
        ("update:\n  learning_rate: 1e300\n", "update.learning_rate: "),
        ("update:\n  learning_rate: 2.0\n", "update.learning_rate: must be less than or equal to 1"),
        ("update:\n  clip_ratio: 1e300\n", "update.clip_ratio: "),
        ("update:\n  clip_ratio: 1.0e+300\n", "must be less than or equal to 1000000000"),
        ("itterations: 3\n", "did you mean 'iterations'"),
        ("zzz: 3\n", "known keys: name, seed"),
        ("1: 2\n", "keys must be texts"),
    ],
)
def test_a_bad_file_is_explained(text: str | bytes, message: str, tmp_path: Path) -> None:
    error = refused(text, tmp_path)
    assert message in error.what
    assert "\n" not in error.what


def test_a_place_in_the_file_is_named(tmp_path: Path) -> None:
    assert str(refused("seed: 1\nname: x\nseed: 2\n", tmp_path).where).endswith("run.yaml, line 3, column 1")


def test_a_merged_key_may_be_set_again() -> None:
    text = "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}\n"
    assert parse_yaml(text, where="here") == {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}


def test_a_value_that_stands_for_gigabytes_is_named_shortly(tmp_path: Path) -> None:
    error = refused(BOMB + "seed: *i\n", tmp_path)
    assert len(error.what) < 5_000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a.b", "not an override"),
        ("=x", "not an override"),
        ("rollout..tasks=1", "not an override"),
        ("seed=[", "not valid YAML"),
        ("seed=2020-99-99", "not valid YAML"),
        ("a=", "unknown key 'a'"),
        ("method=", "method: a section of keys is wanted"),
        ("method=foo", "'foo' is not one of 'grpo', 'pivotopd'"),
        ("method.name=foo", "'foo' is not one of 'grpo', 'pivotopd'"),
        ("student.kind=pretrained", "student.path has no default and is not given"),
        ("student.path=/x", "'tiny' has no key 'student.path', only kind, layers"),
        ("student.path=/x", "kv_heads, intermediate; pretrained has it"),
        ("teacher.path=/x", "'oracle' has no key 'teacher.path', only kind"),
        ("method=pivotpod", "did you mean 'pivotopd'?"),
        ("student.kind=pretrianed", "did you mean 'pretrained'?"),
        ("seed.x=1", "seed: a whole number is wanted here"),
    ],
)
def test_a_bad_override_is_explained_and_named_as_the_place(
    override: str, message: str, tmp_path: Path
) -> None:
    error = refused("student:\n  kind: tiny\n  layers: 1\n", tmp_path, [override])
    assert message in error.what
    assert override in f"{error.where} {error.what}" or override.partition("=")[0] in str(error.where)


def test_another_choice_starts_from_its_own_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("method:\n  prevention_weight: 0.5\nstudent:\n  layers: 1\n")
    for name in ("method=grpo", "method.name=grpo"):
        config = load_config(path, [name, "student.kind=pretrained", "student.path=/x"])
        assert (config.method.name, config.student.kind) == ("grpo", "pretrained")
    for name in ("method=pivotopd", "method.name=pivotopd"):
        assert load_config(path, [name]).method.prevention_weight == 0.5  # type: ignore[union-attr] # pivotopd


@given(
    order=st.permutations(
        ["method=rlsd", "method.mix=0.25", "method.bound=0.1", "teacher.kind=self", "teacher.temperature=0.5"]
    ),
    name=st.sampled_from(["method=rlsd", "method.name=rlsd", "method={name: rlsd}"]),
)
def test_a_choice_never_takes_back_a_setting_whatever_the_order(order: list[str], name: str) -> None:
    config = load_config(None, [name if one == "method=rlsd" else one for one in order])
    assert config.method == RlsdMethod(mix=0.25, bound=0.1)
    assert config.teacher == SelfSection(temperature=0.5)


def test_of_two_values_of_one_key_the_last_one_counts() -> None:
    assert load_config(None, ["seed=1", "rollout.tasks=2", "seed=3"]).seed == 3


@given(text=st.text(max_size=60), value=st.text(st.characters(categories=("L", "N", "P", "S")), max_size=20))
def test_any_text_is_values_or_a_configuration_error(text: str, value: str) -> None:
    try:
        parse_yaml(text, where="here")
        load_config(None, [f"name={value}", f"seed={value}"])
    except ConfigError as error:
        explained = bool(error.where and error.mend)
        assert explained


@pytest.mark.parametrize("value", ["true", "-1", "257", "1.5", "many", "null", "[2]"])
def test_a_number_of_environment_processes_is_refused_in_one_sentence(value: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_config(None, [f"environment.workers={value}"])
    assert found.value.what.startswith(
        "environment.workers: must be auto or a whole number from 0 to 256 (got "
    )
    assert "; " not in found.value.what


@pytest.mark.parametrize("section", ["engine", "teacher"])
@pytest.mark.parametrize(
    "url",
    [
        "http://user:hush@host:8801", "localhost:8801", "ftp://host", "http://", "http://host:99999",
        "http://host:0", "http://host:port", "http://host:8801?key=hush", "http://[::1", "http://a b",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_server_is_refused_and_not_repeated(section: str, url: str) -> None:
    teacher = ["teacher={kind: local, path: MODEL}"] if section == "teacher" else []
    with pytest.raises(
        ConfigError, match=rf"^{section}\.urls: addresses of servers are wanted here"
    ) as found:
        load_config(None, [*teacher, f"{section}.urls=['{url}']"])
    assert "hush" not in str(found.value)
    assert f"{section}.urls=..." in str(found.value.where)


def test_addresses_of_servers_are_taken() -> None:
    urls = ["http://host:8801", "https://gpu-1.cluster/policy/", "http://[::1]:8801"]
    assert load_config(None, [f"engine.urls={urls}"]).engine.urls == urls


@pytest.mark.parametrize("value", ["a/b", "3", "a:b", "häuser", "[x]", "null"])
def test_a_name_of_a_model_is_refused_in_one_sentence(value: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_config(None, [f"tracking.model={value}"])
    assert found.value.what.startswith("tracking.model: true, false or a name of up to 100 letters")
    assert "; " not in found.value.what


@pytest.mark.parametrize(("value", "model"), [("true", True), ("false", False), ("my model-1", "my model-1")])
def test_a_name_of_a_model_or_a_choice_is_taken(value: str, model: bool | str) -> None:
    assert load_config(None, [f"tracking.model={value}"]).tracking.model == model
