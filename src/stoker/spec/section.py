"""What the sections of a run file are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from stoker.spec.code import CODE
from stoker.spec.units import Count, Share, Text

PositiveCount = Annotated[Count, Field(gt=0)]
Fraction = Annotated[Share, Field(ge=0, lt=1)]
Place = Annotated[Text, Field(min_length=1)]
Code = Annotated[Text, Field(pattern=CODE)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
