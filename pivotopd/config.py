"""A run's configuration: typed, strict, every default visible.

Class defaults are the paper's ALFWorld recipe (method reference section 4), so any key in a file is the
user's own deviation. Files are YAML; ``key.sub=value`` overrides follow on the command line. Unknown keys are
refused with the nearest known key named; every error is a :class:`ConfigError`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from pivotopd.errors import ConfigError


class Section(BaseModel):
    """Base of all sections: frozen, and no key passes unnoticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]


class GeneratedGames(Section):
    """Games made from a seed, so that nothing has to be downloaded."""

    seed: int = 0
    """Seed of all splits; splits never share a game."""
    train: Count = 48
    """Games of the train split."""
    valid: Count = 128
    """Games of the held-out split ``valid``."""
    test: Count = 128
    """Games of the held-out split ``test``."""
    task_types: tuple[str, ...] = (
        "pick_and_place_simple",
        "pick_clean_then_place_in_recep",
        "pick_heat_then_place_in_recep",
        "pick_cool_then_place_in_recep",
    )
    """Task types, by their official names."""


class EnvironmentSection(Section):
    """Which environment is played, on which tasks, with which wording."""

    name: Literal["alfworld"] = "alfworld"
    """Environment folder."""
    engine: Literal["native", "stock"] = "native"
    """Our engine, or the reference engine of the extra ``pivotopd[alfworld]``."""
    games: str | None = None
    """Folder of the ALFWorld release or a Parquet of games; null plays generated games."""
    generated: GeneratedGames = GeneratedGames()
    """Used when ``games`` is null."""
    wording: Literal["move", "put"] = "move"
    """Command wording: ALFWorld 0.4 ("move X to Y") or 0.2 ("put X in/on Y")."""
    prompt: Literal["full", "compact"] = "full"
    """Student prompt: the paper's form, or a short one for tiny students."""
    max_turns: Count = 30
    """Turn limit of an episode."""
    history: Annotated[int, Field(ge=0)] = 5
    """Earlier observation/action pairs in the prompt."""
    train_split: str = "train"
    """Split that training plays."""
    valid_split: str = "valid"
    """Split that in-training evaluation plays; where the games have no split ``valid``, it is held out of train."""
    holdout: Count = 128
    """Games held out of the train split as ``valid``; at most a tenth of it."""


class TinyStudent(Section):
    """A Qwen3-architecture model made on the spot and warm-started by imitation."""

    kind: Literal["tiny"] = "tiny"
    """Marks this kind of student."""
    layers: Count = 2
    """Transformer layers."""
    hidden: Count = 128
    """Hidden size."""
    heads: Count = 4
    """Attention heads."""
    kv_heads: Count = 2
    """Key/value heads."""
    intermediate: Count = 384
    """MLP size."""


class PretrainedStudent(Section):
    """A local Hugging Face causal language model."""

    kind: Literal["pretrained"] = "pretrained"
    """Marks this kind of student."""
    path: str
    """Folder with config, safetensors weights and tokenizer."""


class WarmStartSection(Section):
    """Imitation of noisy demonstrations, with and without hints (tiny students only)."""

    seed: int = 0
    """Seed of games, demonstrations and weights; apart from the run's seed, so that runs share one start."""
    games: Count = 10_000
    """Generated games that are demonstrated; disjoint from every other split."""
    steps: Count = 2_400
    """Optimizer steps."""
    batch_rows: Count = 32
    """Rows a step."""
    learning_rate: Positive = 2e-3
    """Peak of a cosine schedule."""
    prompt_weight: NonNegative = 0.2
    """Weight of prompt tokens in the loss; response tokens weigh 1."""
    hinted_share: Share = 0.35
    """Share of rows with a hint in the prompt, which the response obeys."""
    check_games: Count = 128
    """Held-out games of the check at the end."""


class RolloutSection(Section):
    """How episodes are played."""

    tasks: Count = 16
    """Tasks an iteration."""
    group_size: Count = 8
    """Episodes a task (G)."""
    temperature: Positive = 1.0
    """Sampling temperature of rollouts and recoveries."""
    prompt_tokens: Count = 2048
    """Longest prompt; older history is left out first, then the episode ends."""
    response_tokens: Count = 512
    """Longest response."""
    batch_episodes: Count = 256
    """Episodes in flight at once; a result never depends on it."""


class TeacherSection(Section):
    """Who labels episodes and names recovery actions."""

    kind: Literal["oracle"] = "oracle"
    """The exact shortest-path oracle."""
    informed: bool = True
    """Restrict the oracle to what the student has seen; false lets it use hidden objects."""
    max_candidates: Count = 5
    """Most candidate turns an episode (m)."""


class RecoverySection(Section):
    """Recovery branches after pivotal turns."""

    depth: Annotated[int, Field(ge=0)] = 2
    """Recovery turns after each pivotal turn (K)."""
    limit: Annotated[int, Field(ge=0)] = 64
    """Most recovery chains an iteration; which ones is drawn uniformly."""
    reach: Literal["snapshot", "replay"] = "snapshot"
    """How the state after a pivotal turn is reached again; replay compares every observation."""


class GrpoMethod(Section):
    """Group-relative outcome advantage only."""

    name: Literal["grpo"] = "grpo"
    """Marks this method."""
    normalise_std: bool = False
    """Divide by the group's standard deviation."""


class PivotOpdMethod(Section):
    """PivotOPD: outcome, prevention at pivotal turns, recovery after them, lesson on every turn."""

    name: Literal["pivotopd"] = "pivotopd"
    """Marks this method."""
    normalise_std: bool = False
    """Divide the outcome advantage by the group's standard deviation."""
    prevention_weight: NonNegative = 0.001
    """w_prev: weight of the gold-hint log-ratio on pivotal rollout rows."""
    recovery_weight: NonNegative = 1.0
    """w_rec: weight of the clipped recovery-hint log-ratio on recovery rows."""
    lesson_weight: NonNegative = 0.001
    """w_traj: weight of the lesson log-ratio on every rollout row that has a lesson."""
    recovery_clip_nats: Positive = 5.0
    """delta: bound of the recovery log-ratio, applied before the weight."""


def _method_tag(value: Any) -> str | None:
    return value.get("name", "pivotopd") if isinstance(value, dict) else getattr(value, "name", None)


MethodSection = Annotated[
    Annotated[GrpoMethod, Tag("grpo")] | Annotated[PivotOpdMethod, Tag("pivotopd")],
    Discriminator(_method_tag),
]


def _student_tag(value: Any) -> str | None:
    return value.get("kind", "tiny") if isinstance(value, dict) else getattr(value, "kind", None)


StudentSection = Annotated[
    Annotated[TinyStudent, Tag("tiny")] | Annotated[PretrainedStudent, Tag("pretrained")],
    Discriminator(_student_tag),
]


class UpdateSection(Section):
    """The PPO update."""

    learning_rate: Positive = 1e-6
    """AdamW learning rate, constant."""
    weight_decay: NonNegative = 0.01
    """AdamW weight decay."""
    mini_batch_rows: Count = 128
    """Rows an optimizer step."""
    micro_batch_tokens: Count = 16_384
    """Most tokens (with padding) a forward pass; the result does not depend on it."""
    clip_ratio: Positive = 0.2
    """PPO clip (eps), both sides."""
    kl_coefficient: NonNegative = 0.01
    """Weight of the low-variance KL to the initial policy."""
    gradient_clip: Positive = 1.0
    """Largest global gradient norm."""
    invalid_penalty: NonNegative | None = None
    """Subtracted from the score of a row with an invalid reply; null takes the environment's (0.1)."""
    zero_stage: Literal[0, 1, 2] = 1
    """DeepSpeed ZeRO stage."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and computation."""


class EvaluationSection(Section):
    """Evaluation on a fixed panel of tasks."""

    every: Annotated[int, Field(ge=0)] = 10
    """Iterations between evaluations during training; 0 evaluates only before and after."""
    tasks: Count = 128
    """Tasks of the panel: the first by sorted id."""
    samples: Count = 1
    """Episodes a task."""
    temperature: NonNegative = 0.4
    """Sampling temperature."""
    recovery_mistakes: Annotated[int, Field(ge=0)] = 32
    """Pivotal mistakes of the start policy that are replayed; 0 leaves the recovery rate out."""
    recovery_replays: Count = 4
    """Replays a mistake."""
    seed: int = 0
    """Seed of the panel's episodes, apart from the run's, so that all runs are measured alike."""


class TrackingSection(Section):
    """Where MLflow keeps runs."""

    uri: str | None = None
    """MLflow tracking URI; null takes $MLFLOW_TRACKING_URI, else a sqlite file in the storage root."""
    experiment: str | None = None
    """Experiment name; null makes one from environment and student."""
    enabled: bool = True
    """False writes only the JSONL metrics beside each artifact."""


class RunConfig(Section):
    """A whole training run."""

    name: str | None = None
    """Run name; null makes one from environment, method, seed and a digest of the configuration."""
    seed: int = 0
    """Seed of the run: task order, sampling, row order."""
    iterations: Count = 160
    """Training iterations."""
    root: str = "runs"
    """Storage root: a folder or an fsspec URI; the run lies at ROOT/NAME."""
    threads: Count = 1
    """CPU threads of the model engines in this process."""
    environment: EnvironmentSection = EnvironmentSection()
    """Environment."""
    student: StudentSection = Field(default_factory=TinyStudent)
    """Student model."""
    warm_start: WarmStartSection = WarmStartSection()
    """Warm start of a tiny student."""
    rollout: RolloutSection = RolloutSection()
    """Rollout stage."""
    teacher: TeacherSection = TeacherSection()
    """Label stage, and the recovery queries."""
    recovery: RecoverySection = RecoverySection()
    """Recover stage."""
    method: MethodSection = Field(default_factory=PivotOpdMethod)
    """Method: its name and its own settings."""
    update: UpdateSection = UpdateSection()
    """Update stage."""
    evaluation: EvaluationSection = EvaluationSection()
    """Evaluation stage."""
    tracking: TrackingSection = TrackingSection()
    """MLflow."""

    @model_validator(mode="before")
    @classmethod
    def _method_by_name(cls, value: Any) -> Any:
        """Accept ``method: grpo`` for ``method: {name: grpo}``."""
        if isinstance(value, dict) and isinstance(value.get("method"), str):
            return {**value, "method": {"name": value["method"]}}
        return value


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply dotted overrides such as ``recovery.depth=1``.

    Raises:
        ConfigError: The file cannot be read, or a key or value is not acceptable; all problems are named.
    """
    data: dict[str, Any] = {}
    if path is not None:
        data = _read_yaml(Path(path))
    for override in overrides:
        _apply(data, override)
    return parse_config(data, where=str(path) if path else "overrides")


def parse_config(data: dict[str, Any], *, where: str) -> RunConfig:
    """Validate a plain dictionary; see :func:`load_config`."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        problems = [_explain(problem, data) for problem in error.errors()]
        raise ConfigError(
            "; ".join(problems),
            where=where,
            mend="see `pivotopd config` for every key, its default and its meaning",
        ) from error


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return a configuration with dotted overrides on top.

    Raises:
        ConfigError: As :func:`load_config`.
    """
    data = config.model_dump(mode="json")
    for override in overrides:
        _apply(data, override)
    return parse_config(data, where="overrides")


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the configuration: {error}", where=str(path), mend="check the path"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", where=str(path)) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("the configuration is not a mapping of keys", where=str(path))
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    """Set ``a.b=value`` in nested dictionaries; the value is read as YAML."""
    key, separator, text = override.partition("=")
    if not separator or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"not an override: {override!r}", mend="write key.sub=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of {key} is not valid YAML: {error}", mend="quote it") from error
    if isinstance(value, str):
        value = _number(value)
    *parents, last = key.split(".")
    node = data
    for part in parents:
        child = node.get(part)
        if part == "method" and isinstance(child, str):
            child = {"name": child}
        node[part] = child = child if isinstance(child, dict) else {}
        node = child
    kept = node.get(last)
    if key == "method" and isinstance(kept, dict) and kept.get("name", "pivotopd") == value:
        return  # naming the method that is configured keeps its settings
    node[last] = value


def _number(text: str) -> str | float:
    """Read ``1e-4`` as a number, which YAML 1.1 takes for text."""
    try:
        return float(text) if any(character.isdigit() for character in text) else text
    except ValueError:
        return text


def _explain(problem: Any, data: dict[str, Any]) -> str:
    """Say one validation problem in words, with the nearest known key for an unknown one."""
    location = [str(part) for part in problem["loc"]]
    tags = {"grpo", "pivotopd", "tiny", "pretrained"}
    shown = ".".join(part for index, part in enumerate(location) if not (index == 1 and part in tags))
    if problem["type"] == "extra_forbidden":
        known = list(_keys_beside(location))
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        if not near:
            near = [key for key in _all_keys(RunConfig) if key.rsplit(".", 1)[-1] == location[-1]][:1]
        hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
        return f"unknown key {shown!r}{hint}"
    if problem["type"] == "union_tag_invalid":
        return f"{shown}: {problem['ctx']['tag']!r} is not one of {problem['ctx']['expected_tags']}"
    del data
    return f"{shown}: {problem['msg']} (got {problem['input']!r})"


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the section classes inside an annotation such as ``A | B``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_of(inner)


def _keys_beside(location: list[str]) -> Iterator[str]:
    """Yield the keys that would have been accepted at a location."""
    models: list[type[BaseModel]] = [RunConfig]
    for part in location[:-1]:
        inner = [
            m
            for model in models
            if part in model.model_fields
            for m in _models_of(model.model_fields[part].annotation)
        ]
        models = inner or [m for m in models if _tag_of(m) == part] or models
    for model in models:
        yield from model.model_fields


def _tag_of(model: type[BaseModel]) -> Any:
    for name in ("name", "kind"):
        if name in model.model_fields:
            return model.model_fields[name].default
    return None


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a section."""
    for name, info in model.model_fields.items():
        yield prefix + name
        for inner in _models_of(info.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")


def describe_keys() -> list[tuple[str, str, str]]:
    """Return (dotted key, default, meaning) of every leaf key, for the command line's help."""
    rows: list[tuple[str, str, str]] = []

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            inner = list(_models_of(info.annotation))
            if inner:
                for section in inner:
                    tag = f" [{_tag_of(section)}]" if len(inner) > 1 else ""
                    walk(section, f"{prefix}{name}{tag}.")
            else:
                default = "required" if info.is_required() else str(info.default)
                rows.append((prefix + name, default, (info.description or "").strip()))

    walk(RunConfig, "")
    return rows


def environment_flag(name: str) -> bool:
    """Read a yes/no environment variable.

    Raises:
        ConfigError: It is set to something else than 0, 1, true, false, yes or no.
    """
    text = os.environ.get(name, "").strip().lower()
    if text in {"", "0", "false", "no"}:
        return False
    if text in {"1", "true", "yes"}:
        return True
    raise ConfigError(f"{name} is {text!r}", where="environment", mend="set it to 1 or 0")
