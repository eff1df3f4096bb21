"""The base of every configuration section, and the number types that sections share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of all sections: frozen, and no key passes unnoticed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


Share = Annotated[float, Field(ge=0.0, le=1.0)]
LARGEST = 1e9
"""Bound of every number that enters the arithmetic, which is done in float32."""
Positive = Annotated[float, Field(gt=0.0, le=LARGEST)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
WholeNumber = Annotated[int, Field(ge=0)]
