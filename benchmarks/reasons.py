"""Why a gate can be missed on a CPU with a tiny student; shown on the page beside what was missed."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "overhead/k1/latency": (
        "K = 1 waits for two rounds of the teacher (labels, one recovery query). While it waits, the "
        "update's scores are computed, so a round costs only what is longer than that; what is left is "
        "K = 1's own work, and reading the last episodes, which nothing of the rollout hides."
    ),
    "overhead/k2/latency": (
        "As for K = 1, with three rounds; each depth asks after the depth before it was played, so the "
        "rounds of one chain cannot overlap. What can be done meanwhile is the scoring of the rollout."
    ),
    "overhead/k4/latency": (
        "As for K = 1, with five rounds. The scores of the rollout, by policy and reference, are done before "
        "the last of them, and the rows that they answer are what else there is to score; the rest is "
        "K = 4's own work, as with a teacher that answers at once."
    ),
    "overhead/k2/lesson": (
        "A lesson scored at every turn is one more forward pass over all tokens under a longer prompt. It "
        "shares little with the plain one, since the lesson stands in front, and equal turns of episodes "
        "with different lessons are no longer equal. Beside a tiny student's cheap decoding it weighs more "
        "than beside a real one's; a teacher that is waited for hides it."
    ),
    "overhead/k": (
        "Each gold action is one more scored row, and each recovery turn one more row to generate, "
        "score and train. The iteration it is compared with has no fixed costs: engine and learner "
        "are running."
    ),
    "restore/own/bytes": (
        "Our own engine replays a turn in some ten microseconds; reading a stored state is not five "
        "times cheaper than that. Recovery reads a state once a chain and then goes on in the "
        "instance."
    ),
    "restore/stock/bytes": ("Reading the bytes, not restoring the state, takes the time."),
    "rollout/lockstep": (
        "The loop takes more than twice as many steps (the counts), because each round waits for its longest "
        "response. Where a step takes as long for one row as for all, that is the ratio. On a CPU each row "
        "costs too, finished responses leave the loop's batch as well, and ours reads its prompts in smaller "
        "batches: so it gains less."
    ),
    "update/trl": (
        "TRL 1.16 computes its head in tiles, for response tokens only, as we do; what is left is its "
        "padding to the longest row of the batch, and small matrices."
    ),
    "loss/memory": ("The peak holds the head's gradient and a few chunks of logits, whatever T is."),
    "orchestration/share": (
        "A tiny student's iteration takes seconds, so that milliseconds of Prefect, manifests and "
        "Parquet files, and a checkpoint after each update, count. They do not grow with the model, "
        "except the checkpoint."
    ),
    "orchestration/engine_starts": (
        "One engine serves a run and takes each new policy in place: a start after the first iteration "
        "is a defect."
    ),
    "growth": (
        "Prompts grow until the window of earlier turns is full, so short episodes have shorter prompts."
    ),
}
"""Beginning of a name to the reason; the longest that fits."""


def reason_of(name: str) -> str:
    """Return why a value can miss its gate."""
    fitting = [prefix for prefix in REASONS if name.startswith(prefix)]
    return REASONS[max(fitting, key=len)] if fitting else "Not explained yet."
