"""A diagnosis part's figures beside its tables, for the report and as metrics."""

from __future__ import annotations

from typing import Final

from pivotopd.artifacts import Artifact
from pivotopd.diagnosis.figures import Part, from_json, metrics, to_json
from pivotopd.publish import ArtifactWriter
from stages.metrics import metrics_text

FILE: Final = "figures.json"


def write_part(writer: ArtifactWriter, part: Part) -> None:
    """Write a part's figures, and the same as metrics."""
    writer.write_log(FILE, to_json(part))
    writer.write_log("metrics.json", metrics_text(metrics([part])))


def part_of(artifact: Artifact) -> Part:
    """Return the figures that a part's stage wrote."""
    return from_json(artifact.log(FILE))
