"""The base class of the sections of a run file, and types of their fields."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from stoker.spec.code import CODE
from stoker.spec.units import MAX_COUNT, Count, Share, Text

PositiveCount = Annotated[Count, Field(gt=0, le=MAX_COUNT)]
Fraction = Annotated[Share, Field(ge=0, lt=1)]
Place = Annotated[Text, Field(min_length=1), AfterValidator(lambda v: _without_password(v))]
Code = Annotated[Text, Field(pattern=CODE)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _without_password(place: str) -> str:
    """Paths are shown and stored in the run's files, so they must not contain a password (`user:password@host`)."""
    if re.search(r"://[^/]*@", place) or re.match(r"[^/@]*:[^/@]*@(?!sha256:)", place):
        raise ValueError("it contains a user name or password, which would be shown and stored; use an address without")
    return place
