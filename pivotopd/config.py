"""A run's configuration: typed, strict, every default visible.

Class defaults are the paper's ALFWorld recipe (Tables S.2 and S.3), so any key in a file is the user's own
deviation. :mod:`pivotopd.config_files` reads files and overrides and explains what is wrong.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from pivotopd.engine_section import CUTTING, EngineSection
from pivotopd.launch.section import LaunchSection
from pivotopd.methods.sections import MethodSection, PivotOpdMethod
from pivotopd.section import Count, LearningRate, NonNegative, Positive, Section, Share, WholeNumber
from pivotopd.teacher_section import (
    EndpointSection,
    LargerTeacherSection,
    LocalSection,
    OracleSection,
    SelfSection,
    TeacherSection,
)


class GeneratedGames(Section):
    """Games made from a seed, so that nothing has to be downloaded."""

    seed: WholeNumber = 0
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


MOST_WORKERS = 256
"""Most processes that may be asked for."""


def _worker_number(value: object) -> object:
    """Refuse what is neither `auto` nor a number of processes; a bool is a number to Python."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WORKERS:
        return value
    if value != "auto":
        raise ValueError(f"must be auto or a whole number from 0 to {MOST_WORKERS}")
    return value


class EnvironmentSection(Section):
    """Which environment is played, on which tasks, with which wording."""

    RUNNING: ClassVar[frozenset[str]] = frozenset({"workers"})
    """Keys that say how the same episodes are played: no digest covers them."""

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
    """Split that evaluation plays; where the games have no split ``valid``, it is held out of train."""
    workers: Annotated[Literal["auto"] | int, BeforeValidator(_worker_number)] = "auto"
    """Processes that play episodes; 0 plays in this one. `auto`: a CPU each for the stock engine, else 0."""
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

    seed: WholeNumber = 0
    """Seed of games, demonstrations and weights; apart from the run's seed, so that runs share one start."""
    games: Count = 3_000
    """Generated games that are demonstrated; no held-out game is among them."""
    steps: Count = 2_400
    """Optimizer steps."""
    batch_rows: Count = 16
    """Rows a step."""
    learning_rate: LearningRate = 1.5e-3
    """Peak of a cosine schedule."""
    prompt_weight: NonNegative = 0.1
    """Weight of prompt tokens in the loss; response tokens weigh 1."""
    hinted_share: Share = 0.35
    """Share of rows with a hint in the prompt, which the response obeys."""
    gap_share: Share = 1.0
    """Share of games that are demonstrated with the gap; 0 teaches no built-in mistake."""
    skilled_share: Share = 0.0
    """Share of rows with made-up skills in the prompt; `skill_grpo` needs a student that has seen some."""
    check_games: Count = 128
    """Held-out games of the check at the end."""


def _on_policy(temperature: float) -> float:
    """Refuse a temperature at which PPO's old log-probabilities would not be the sampler's."""
    if temperature != 1.0:
        raise ValueError("rollouts are sampled at temperature 1, where log-probabilities are taken")
    return temperature


class RolloutSection(Section):
    """How episodes are played."""

    @model_validator(mode="before")
    @classmethod
    def _full_support(cls, value: Any) -> Any:
        """Refuse, with the reason, what cuts or bends the distribution that log-probabilities are of."""
        named = sorted(set(value) & CUTTING) if isinstance(value, dict) else []
        if named:
            raise ValueError(
                f"{', '.join(named)}: rollouts are drawn from the whole distribution, since training needs "
                "the log-probabilities that tokens were drawn with; leave it out"
            )
        return value

    tasks: Count = 16
    """Tasks an iteration."""
    group_size: Count = 8
    """Episodes a task (G)."""
    temperature: Annotated[float, AfterValidator(_on_policy)] = 1.0
    """Sampling temperature of rollouts and recoveries; only 1 is on-policy, as log-probabilities are at 1."""
    prompt_tokens: Count = 2048
    """Longest prompt; older history is left out first, then the episode ends."""
    response_tokens: Count = 512
    """Longest response."""
    batch_episodes: Count = 256
    """Episodes in flight at once; a result depends on it by rounding alone."""


class RecoverySection(Section):
    """Recovery branches after pivotal turns."""

    depth: Annotated[int, Field(ge=0, le=100)] = 2
    """Recovery turns after each pivotal turn (K)."""
    limit: Annotated[int, Field(ge=0)] = 64
    """Most recovery chains an iteration; which ones is drawn uniformly."""
    reach: Literal["snapshot", "replay"] = "snapshot"
    """How the state after a pivotal turn is reached again; replay compares every observation."""


class SkillsSection(Section):
    """The skill bank, made once a run from the start policy's own play; only for methods with skills."""

    episodes: Count = 128
    """Episodes that the start policy plays for it, each of another training task while there are some."""
    entries: Count = 47
    """Most skills in the bank (PivotOPD's comparison has 47 on ALFWorld)."""
    top: Count = 6
    """Most skills that a self-teacher sees, of the row's task type; Skill-SD's sees one."""


def _student_tag(value: Any) -> str | None:
    return value.get("kind", "tiny") if isinstance(value, dict) else getattr(value, "kind", None)


StudentSection = Annotated[
    Annotated[TinyStudent, Tag("tiny")] | Annotated[PretrainedStudent, Tag("pretrained")],
    Discriminator(_student_tag),
]


class LoraSection(Section):
    """LoRA: small matrices are trained beside frozen weights (extra `pivotopd[lora]`)."""

    rank: Count = 16
    """Rank of the small matrices."""
    alpha: Positive = 32.0
    """Their product is scaled by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Layers that get them, by the ends of their names."""


class UpdateSection(Section):
    """The PPO update."""

    RUNNING: ClassVar[frozenset[str]] = frozenset(
        {"micro_batch_tokens", "packing", "gradient_checkpointing", "ranks", "idle_limit"}
    )
    """Keys that say how the same update is computed, and when a run gives up: no digest covers them."""

    learning_rate: LearningRate = 1e-6
    """AdamW learning rate, constant."""
    weight_decay: NonNegative = 0.01
    """AdamW weight decay."""
    mini_batch_rows: Count = 128
    """Rows an optimizer step."""
    micro_batch_tokens: Count = 16_384
    """Most tokens (with padding) a forward pass; the result does not depend on it."""
    packing: bool = True
    """Rows behind each other in one sequence, none of them padded; the result does not depend on it."""
    lora: LoraSection | None = None
    """Train adapters in place of all weights; null trains all. Checkpoints hold the merged weights."""
    gradient_checkpointing: bool = False
    """Compute each layer twice, to keep only its input; the result does not depend on it."""
    clip_ratio: Positive = 0.2
    """PPO clip (eps), both sides."""
    kl_coefficient: NonNegative = 0.01
    """Weight of the low-variance KL to the initial policy."""
    gradient_clip: Positive = 1.0
    """Largest global gradient norm."""
    invalid_penalty: NonNegative | None = None
    """Subtracted from the score of a row with an invalid reply; null takes the environment's (0.1)."""
    idle_limit: Annotated[int, Field(ge=0)] = 0
    """Iterations in a row that may pass with nothing won and no advantage but zero; then exit code 6."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """DeepSpeed ZeRO stage: what ranks share out. 1 optimizer state, 2 and gradients, 3 and weights."""
    ranks: Count = 1
    """Processes of the update on this machine, one a GPU; the result depends on their number by rounding."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and computation."""


class EvaluationSection(Section):
    """Evaluation on a fixed panel of tasks."""

    every: Annotated[int, Field(ge=0)] = 10
    """Iterations between evaluations during training; 0 evaluates only before and after."""
    tasks: Count = 128
    """Tasks of the panel, at equal steps through the split by task type and id."""
    samples: Count = 1
    """Episodes a task."""
    temperature: NonNegative = 0.4
    """Sampling temperature."""
    recovery_mistakes: Annotated[int, Field(ge=0)] = 32
    """Pivotal mistakes of the start policy that are replayed; 0 leaves the recovery rate out."""
    recovery_replays: Count = 4
    """Replays a mistake."""
    seed: WholeNumber = 0
    """Seed of the panel's episodes, apart from the run's, so that all runs are measured alike."""


class DiagnosisSection(Section):
    """Diagnosis: where a policy fails, whether one early mistake decides, whether it recovers."""

    split: str | None = None
    """Split that is played; null takes environment.valid_split."""
    tasks: Count = 140
    """Tasks of the panel, at equal steps through the split by task type and id (valid_seen has 140)."""
    samples: Count = 1
    """Episodes a task."""
    temperature: NonNegative = 0.4
    """Sampling temperature of all episodes and replays."""
    repeats: Count = 8
    """Repeats of each intervention on each failed episode with a pivotal turn."""
    forced_after: Annotated[tuple[Count, ...], Field(max_length=10)] = (1, 2, 3)
    """Interventions after the mistake: over how many turns the oracle acts in each."""
    mistakes: str | None = None
    """Address of the `mistakes` artifact of another diagnosis; null takes the start policy's own mistakes."""
    most_mistakes: Count = 256
    """Most mistakes in the set, and most episodes with interventions, at equal steps where there are more."""
    replays: Count = 8
    """Replays of each mistake by the policy."""
    agreement_samples: Count = 5
    """Times that the teacher labels each failed episode; one that always says the same labels it once."""
    probability_samples: Count = 32
    """Responses drawn at temperature 1 before each mistake, for the probability of an action."""
    draws: Count = 4000
    """Bootstrap resamples of episodes."""
    recovery_draws: Count = 2000
    """Bootstrap resamples of mistakes, for recovery."""
    seed: WholeNumber = 0
    """Seed of episodes, replays, drawn turns and resamples, apart from the run's."""


MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9 _-]{0,99}$"
ModelName = Annotated[str, Field(pattern=MODEL_NAME)]
"""A registered model's name: what MLflow takes and a filter needs no quoting for."""


def _model_name(value: object) -> object:
    """Refuse what is neither yes or no nor a name, in one sentence for both."""
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(MODEL_NAME, value)):
        return value
    raise ValueError("true, false or a name of up to 100 letters, digits, spaces, - and _ is wanted here")


class TrackingSection(Section):
    """Where MLflow keeps runs."""

    uri: str | None = None
    """MLflow tracking URI; null takes $MLFLOW_TRACKING_URI, else a sqlite file in the storage root."""
    experiment: str | None = None
    """Experiment name; null makes one from environment and student."""
    enabled: bool = True
    """False writes only the JSONL metrics beside each artifact."""
    model: Annotated[bool | ModelName, BeforeValidator(_model_name)] = False
    """Register checkpoints as versions of an MLflow model; true makes a name from environment and student."""

    @field_validator("uri")
    @classmethod
    def _holds_no_password(cls, value: str | None) -> str | None:
        if value is not None and "@" in urlsplit(value).netloc:
            raise ValueError(
                "no user or password in the address: use MLFLOW_TRACKING_USERNAME and _PASSWORD, "
                "or MLFLOW_TRACKING_URI"
            )
        return value


class RunConfig(Section):
    """A whole training run."""

    name: str | None = None
    """Run name; null makes one from environment, method, seed and a digest of the configuration."""
    seed: WholeNumber = 0
    """Seed of the run: task order, sampling, row order."""
    iterations: Count = 160
    """Training iterations."""
    root: str = "runs"
    """Storage root: a folder or an fsspec URI; the run lies at ROOT/NAME."""
    threads: Count = 1
    """CPU threads of the model engines in this process."""
    streaming: Literal["none", "exact", "joined"] = "none"
    """Label finished groups while others still play; `joined`: recover them too, in the rollout's batches."""
    environment: EnvironmentSection = EnvironmentSection()
    """Environment."""
    student: StudentSection = Field(default_factory=TinyStudent)
    """Student model."""
    warm_start: WarmStartSection = WarmStartSection()
    """Warm start of a tiny student."""
    rollout: RolloutSection = RolloutSection()
    """Rollout stage."""
    engine: EngineSection = EngineSection()
    """Engine that generates."""
    teacher: TeacherSection = Field(default_factory=OracleSection)
    """Label stage, and the recovery queries."""
    larger_teacher: LargerTeacherSection = LargerTeacherSection()
    """Larger model of the methods `opd`, `sod`, `tcod` and `turnopd`."""
    recovery: RecoverySection = RecoverySection()
    """Recover stage."""
    method: MethodSection = Field(default_factory=PivotOpdMethod)
    """Method: its name and its own settings."""
    skills: SkillsSection = SkillsSection()
    """Skill bank."""
    update: UpdateSection = UpdateSection()
    """Update stage."""
    evaluation: EvaluationSection = EvaluationSection()
    """Evaluation stage."""
    diagnosis: DiagnosisSection = DiagnosisSection()
    """Diagnosis, asked for by `pivotopd diagnose`; training does none."""
    tracking: TrackingSection = TrackingSection()
    """MLflow."""
    launch: LaunchSection = LaunchSection()
    """Where jobs run and what they ask for; read by `pivotopd submit` and `--to`, and by no digest."""

    @model_validator(mode="before")
    @classmethod
    def _method_by_name(cls, value: Any) -> Any:
        """Accept ``method: grpo`` for ``method: {name: grpo}``."""
        if isinstance(value, dict) and isinstance(value.get("method"), str):
            return {**value, "method": {"name": value["method"]}}
        return value

    @property
    def diagnosis_split(self) -> str:
        """Split that a diagnosis plays."""
        return self.diagnosis.split or self.environment.valid_split

    @property
    def teacher_reads(self) -> dict[str, Any]:
        """What decides a teacher's answers: its section without what only says how it is reached."""
        sections = (EndpointSection, LocalSection)
        outside = self.teacher.RUNNING if isinstance(self.teacher, sections) else frozenset()
        found = self.teacher.model_dump(mode="json", exclude=set(outside))
        drawn = {"student_engine": self.engine.reads} if isinstance(self.teacher, SelfSection) else {}
        return found | drawn
