"""One configuration section a method. Defaults are those of PivotOPD's comparison (its App. D.3).

Where the original of a method uses another value, the key's text names it. Only pydantic is imported here:
the configuration is built from these classes before anything is computed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Tag, model_validator

from pivotopd.depth import Curriculum, DepthCut, Probes, Tail
from pivotopd.section import Count, NonNegative, Positive, Section, Share, WholeNumber

HintForm = Literal["action", "reflection"]
"""``action`` names the gold action; ``reflection`` only asks to look back (an ablation)."""


class MethodSettings(Section):
    """Base of all methods: what stages before the update ask of a method, without knowing which it is."""

    @property
    def random_pivots(self) -> bool:
        """Gold actions are moved to uniformly random turns."""
        return False

    @property
    def reverse_recovery(self) -> bool:
        """Recovery rows are the student's own recorded turns."""
        return False

    @property
    def hint_form(self) -> HintForm:
        """Whether hints name an action."""
        return "action"

    @property
    def prompt_skills(self) -> int:
        """Most skills of the bank in a training prompt."""
        return 0

    @property
    def skill_exploration(self) -> float | None:
        """Constant c of UCB, which retrieves a skill an episode; None retrieves a task type's first."""
        return None

    @property
    def analysed(self) -> bool:
        """The teacher writes skills for each finished episode, instead of gold actions."""
        return False

    @property
    def depth_cut(self) -> DepthCut | None:
        """How training rollouts are cut by depth; None where they are not."""
        return None


class OutcomeMethod(MethodSettings):
    """Base of the methods with a group-relative outcome advantage."""

    normalise_std: bool = False
    """Divide the outcome advantage by the standard deviation of the group's returns. Original GRPO: true."""


class EstimatedMethod(MethodSettings):
    """Base of the methods whose divergence can be a log-ratio of sampled tokens or a sum over tokens."""

    estimator: Literal["sampled", "top_k", "full"] = "sampled"
    """Divergence by the sampled token's log-ratio, or summed over likely or all tokens (ablation)."""
    estimator_tokens: Count = 50
    """Tokens of the top_k estimator: the self-teacher's likeliest, over which both are renormalised."""

    @model_validator(mode="after")
    def _tokens_are_read(self) -> Self:
        """Refuse a number of tokens that nothing reads: it would only give the run another name."""
        default = type(self).model_fields["estimator_tokens"].default
        if self.estimator != "top_k" and self.estimator_tokens != default:
            raise ValueError("estimator_tokens is read with estimator=top_k only: set that, or leave it out")
        return self

    @property
    def target_tokens(self) -> int | Literal["all"]:
        """Ids of each token that are kept of the self-teacher; 0 for the sampled one alone."""
        widths: dict[str, int | Literal["all"]] = {
            "sampled": 0,
            "top_k": self.estimator_tokens,
            "full": "all",
        }
        return widths[self.estimator]


class GrpoMethod(OutcomeMethod):
    """Group-relative outcome advantage only."""

    name: Literal["grpo"] = "grpo"
    """Marks this method."""


class PivotOpdMethod(OutcomeMethod, EstimatedMethod):
    """PivotOPD: outcome, prevention at pivotal turns, recovery after them, lesson on every turn."""

    name: Literal["pivotopd"] = "pivotopd"
    """Marks this method."""
    prevention_weight: NonNegative = 0.001
    """w_prev: weight of the gold-hint log-ratio on pivotal rollout rows. Preventive only: 0.1."""
    recovery_weight: NonNegative = 1.0
    """w_rec: weight of the clipped recovery-hint log-ratio on recovery rows."""
    lesson_weight: NonNegative = 0.001
    """w_traj: weight of the lesson log-ratio on every rollout row that has a lesson."""
    recovery_clip_nats: Positive = 5.0
    """delta: bound of the recovery log-ratio, applied before the weight."""
    recovery_objective: Literal["adv", "nll"] = "adv"
    """On recovery rows: the clipped log-ratio as advantage, or plain negative log-likelihood (ablation)."""
    recovery_kl: Literal["forward", "reverse"] = "forward"
    """Recovery rows: what the self-teacher wrote, or the student's recorded responses (ablation)."""
    pivot_turns: Literal["labelled", "random"] = "labelled"
    """Pivotal turns as the teacher names them, or as many at uniformly random turns (ablation)."""
    hint: HintForm = "action"
    """Hints that name the gold action, or that only ask to reflect (ablation)."""

    @model_validator(mode="after")
    def _objective_fits(self) -> Self:
        """Refuse a likelihood of what the student itself said: it would be no distillation at all."""
        if self.recovery_objective == "nll" and self.recovery_kl == "reverse":
            raise ValueError("recovery_objective=nll needs recovery_kl=forward")
        if self.recovery_objective == "nll" and self.estimator != "sampled":
            raise ValueError("recovery_objective=nll is a sampled estimate: it needs estimator=sampled")
        return self

    @property
    def random_pivots(self) -> bool:
        """Gold actions are moved to uniformly random turns."""
        return self.pivot_turns == "random"

    @property
    def reverse_recovery(self) -> bool:
        """Recovery rows are the student's own recorded turns."""
        return self.recovery_kl == "reverse"

    @property
    def hint_form(self) -> HintForm:
        """Whether hints name an action."""
        return self.hint


class PivotRlMethod(OutcomeMethod):
    """PivotRL, online: outcome advantage only at turns whose observation led to different outcomes."""

    name: Literal["pivotrl"] = "pivotrl"
    """Marks this method."""


class StepOpsdMethod(OutcomeMethod):
    """StepOPSD: a successful peer reshapes the advantage of action tokens."""

    name: Literal["stepopsd"] = "stepopsd"
    """Marks this method."""
    bound: Share = 0.2
    """alpha: a token's weight stays within 1 - alpha and 1 + alpha."""
    mix: Share = 0.2
    """lambda at the start: share of the reshaped advantage."""
    mix_iterations: WholeNumber = 50
    """Iterations over which lambda falls to 0 in a line; 0 keeps it."""


class OpsdMethod(EstimatedMethod):
    """OPSD: the skill-conditioned self-teacher on every response, no outcome."""

    name: Literal["opsd"] = "opsd"
    """Marks this method."""
    coefficient: Positive = 1.0
    """Weight of the log-ratio, or of the divergence. (Original: full estimator, fixed first teacher.)"""
    beta: Share = 0.5
    """Divergence of the other estimators: 0 KL(teacher || student), 1 the reverse, Jensen-Shannon between."""


class OpdMethod(MethodSettings):
    """OPD: a larger model's log-probabilities on every response, no outcome."""

    name: Literal["opd"] = "opd"
    """Marks this method."""
    coefficient: Positive = 1.0
    """Weight of the log-ratio."""


class RlsdMethod(OutcomeMethod):
    """RLSD: the self-teacher decides how much of the outcome advantage each token gets."""

    name: Literal["rlsd"] = "rlsd"
    """Marks this method."""
    bound: Share = 0.2
    """eps_w: a token's weight stays within 1 - eps_w and 1 + eps_w."""
    mix: Share = 0.5
    """lambda at the start: share of the reshaped advantage."""
    mix_iterations: WholeNumber = 100
    """Iterations over which lambda falls to 0 in a line, as in agent scripts; original 50; 0 keeps it."""


class SdarMethod(OutcomeMethod):
    """SDAR: outcome, and a gated likelihood of the tokens that the self-teacher prefers."""

    name: Literal["sdar"] = "sdar"
    """Marks this method."""
    weight: NonNegative = 0.01
    """lambda: weight of the gated term."""
    sharpness: Positive = 5.0
    """beta: steepness of the gate, per nat."""


class TurnOpdMethod(MethodSettings):
    """TurnOPD: a larger model's log-ratio, weighted by turn depth and cut at a depth cap."""

    name: Literal["turnopd"] = "turnopd"
    """Marks this method."""
    blend_from: WholeNumber = 0
    """s: iteration up to which every token weighs alike (alpha 0)."""
    blend_to: Count = 160
    """e: iteration from which every depth weighs alike (alpha 1)."""
    max_depth: Count = 30
    """H_max: largest depth cap."""
    ema: Share = 0.3
    """Weight of a new probe in the moving average of the depth."""
    quantile: Share = 0.8
    """Quantile of the successful completion depth that the cap must cover."""
    min_successes: Count = 8
    """Successes that a probe must have for that quantile to count."""
    probe_every: Count = 8
    """Iterations between probes."""
    warm_up: WholeNumber = 3
    """Iterations at the start without a cap."""

    @model_validator(mode="after")
    def _blend_rises(self) -> Self:
        if self.blend_to <= self.blend_from:
            raise ValueError("blend_to must be above blend_from")
        return self

    @property
    def depth_cut(self) -> Probes:
        """Rollouts are cut at a cap that follows from probes."""
        return Probes(self.warm_up, self.probe_every, self.max_depth)


class TcodMethod(MethodSettings):
    """TCOD: a larger model's log-ratio on the first turns, or the last ones, more of them with time."""

    name: Literal["tcod"] = "tcod"
    """Marks this method."""
    coefficient: Positive = 1.0
    """Weight of the log-ratio."""
    direction: Literal["f2b", "b2f"] = "f2b"
    """First turns first, or last turns first, after a beginning that the oracle plays."""
    iterations_per_turn: Count | None = None
    """eta: iterations until one more turn is the student's; null: the original's, 6 for f2b, 5 for b2f."""
    max_turns: Count = 30
    """Most turns that train (f2b), or that the oracle leaves to the student (b2f)."""

    @property
    def depth_cut(self) -> Curriculum | Tail:
        """Rollouts are cut at a turn that moves with the iteration, or are entered there."""
        if self.direction == "b2f":
            return Tail(self.iterations_per_turn or 5, self.max_turns)
        return Curriculum(self.iterations_per_turn or 6, self.max_turns)


class SodMethod(OutcomeMethod):
    """SOD: outcome, and a larger model's log-ratio, less of it where the student has drifted away."""

    name: Literal["sod"] = "sod"
    """Marks this method."""
    coefficient: Positive = 1.0
    """Weight of the log-ratio."""
    headroom: NonNegative = 0.2
    """d_max: a turn's weight is at most 1 + d_max. (Script: 0.2; its code's default: 0.5.)"""
    floor_nats: Positive = 1e-6
    """e: added to every divergence."""


class AgentOpsdMethod(OutcomeMethod):
    """AgentOPSD: the change of belief in success decides how much of the outcome each turn gets."""

    name: Literal["agentopsd"] = "agentopsd"
    """Marks this method."""
    mix: Share = 0.5
    """lambda: share of the reshaped advantage."""
    bound: Share = 0.2
    """b: a turn's weight stays within 1 - b and 1 + b."""
    discount: Share = 0.95
    """gamma: how long evidence of earlier turns lasts."""


class SkillGrpoMethod(OutcomeMethod):
    """Skill-GRPO: GRPO on prompts that hold retrieved skills; none at test time."""

    name: Literal["skill_grpo"] = "skill_grpo"
    """Marks this method."""
    skills: Count = 6
    """Skills in a training prompt."""

    @property
    def prompt_skills(self) -> int:
        """Most skills of the bank in a training prompt."""
        return self.skills


class OpidMethod(OutcomeMethod):
    """OPID: outcome, and the log-ratio under a skill that an analyser wrote for the turn or the episode."""

    name: Literal["opid"] = "opid"
    """Marks this method."""
    weight: NonNegative = 0.001
    """Weight of the log-ratio, the same for both kinds of skill."""

    @property
    def analysed(self) -> bool:
        """The teacher writes skills for each finished episode, instead of gold actions."""
        return True


class SkillSdMethod(OutcomeMethod):
    """Skill-SD: outcome, and a reverse KL to the self-teacher with one retrieved skill."""

    name: Literal["skill_sd"] = "skill_sd"
    """Marks this method."""
    weight: NonNegative = 0.001
    """lambda: weight of the KL term; 0.01 is too strong by its paper."""
    exploration: NonNegative = 1.0
    """c of the retrieval by UCB, where a won episode has reward 1 and another 0."""

    @property
    def skill_exploration(self) -> float | None:
        """Constant c of UCB."""
        return self.exploration


Settings = (
    GrpoMethod
    | PivotOpdMethod
    | PivotRlMethod
    | StepOpsdMethod
    | OpsdMethod
    | OpdMethod
    | RlsdMethod
    | SdarMethod
    | TurnOpdMethod
    | TcodMethod
    | SodMethod
    | AgentOpsdMethod
    | SkillGrpoMethod
    | OpidMethod
    | SkillSdMethod
)
"""The section of some method."""


def _tag(value: Any) -> str | None:
    return value.get("name", "pivotopd") if isinstance(value, dict) else getattr(value, "name", None)


MethodSection = Annotated[
    Annotated[GrpoMethod, Tag("grpo")]
    | Annotated[PivotOpdMethod, Tag("pivotopd")]
    | Annotated[PivotRlMethod, Tag("pivotrl")]
    | Annotated[StepOpsdMethod, Tag("stepopsd")]
    | Annotated[OpsdMethod, Tag("opsd")]
    | Annotated[OpdMethod, Tag("opd")]
    | Annotated[RlsdMethod, Tag("rlsd")]
    | Annotated[SdarMethod, Tag("sdar")]
    | Annotated[TurnOpdMethod, Tag("turnopd")]
    | Annotated[TcodMethod, Tag("tcod")]
    | Annotated[SodMethod, Tag("sod")]
    | Annotated[AgentOpsdMethod, Tag("agentopsd")]
    | Annotated[SkillGrpoMethod, Tag("skill_grpo")]
    | Annotated[OpidMethod, Tag("opid")]
    | Annotated[SkillSdMethod, Tag("skill_sd")],
    Discriminator(_tag),
]
"""What ``method`` takes: the section of the method that ``method.name`` names, PivotOPD's without one."""
