"""A stage's metrics: a small JSON text beside its tables, so that a cached stage still has them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from pivotopd.artifacts import Artifact


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics as one JSON line; a value that is not finite becomes null."""
    shown = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return json.dumps(shown, sort_keys=True) + "\n"


def metrics_of(artifact: Artifact) -> dict[str, float]:
    """Return the metrics of a stage's artifact; nulls are left out."""
    stored = json.loads(artifact.log("metrics.json"))
    return {name: float(value) for name, value in stored.items() if value is not None}
