"""What the sections of a run file are made of."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from stoker.spec.code import CODE
from stoker.spec.units import MOST, Count, Share, Text

PositiveCount = Annotated[Count, Field(gt=0, le=MOST)]
Fraction = Annotated[Share, Field(ge=0, lt=1)]
Place = Annotated[Text, Field(min_length=1), AfterValidator(lambda v: _without_password(v))]
Code = Annotated[Text, Field(pattern=CODE)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _without_password(place: str) -> str:
    """What is written here is shown, and kept in the run's files. `user:password@registry` is one too."""
    if re.search(r"://[^/]*@", place) or re.match(r"[^/@]*:[^/@]*@(?!sha256:)", place):
        raise ValueError("it has a user name or password in it, which would be shown and kept; use an address without")
    return place
