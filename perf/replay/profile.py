"""A profile: a short TOML file that says what traffic is like; docs/replay.md explains every key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from perf.replay.arrivals import Process
from perf.replay.spreads import Spread, Table, Weights
from perf.replay.trace import (
    Count,
    DrawSize,
    Format,
    Guidance,
    LatencyClass,
    Modality,
    Objective,
    Positive,
    Tier,
    reason,
)

MAX_SECONDS = 86_400.0
Share = Annotated[float, Field(ge=0, le=1)]


class Sessions(Table):
    """A session is one person who asks several times."""

    turns: Spread
    think_s: Spread  # from one request to the next; nobody waits for an answer
    repeat: Share  # of the pictures of later turns: that they were shown before


class Text(Table):
    prompt_tokens: Spread
    output_tokens: Spread
    n: Weights[Count] = {1: 1.0}  # answers


class Pictures(Table):
    number: Spread  # of a request of the modality multi-image
    pixels: Spread
    max_aspect_ratio: Annotated[float, Field(ge=1, le=100)] = 2.0
    formats: Weights[Format]
    tiers: Weights[Tier]


class Draw(Table):
    sizes: Weights[DrawSize]
    steps: Weights[Count]
    guidance: Weights[Guidance]
    n: Weights[Count] = {1: 1.0}  # pictures


class Class(Table):
    share: Share
    deadline_ms: Count | None = None
    objective: Objective


class Cancels(Table):
    share: Share  # of requests whose client leaves
    after_s: Spread


class Profile(Table):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    seconds: Annotated[Positive, Field(le=MAX_SECONDS)]
    arrivals: Process
    modalities: Weights[Modality]  # of sessions
    sessions: Sessions
    text: Text
    pictures: Pictures | None = None
    draw: Draw | None = None
    tenants: Weights[str]
    classes: Annotated[Mapping[LatencyClass, Class], Field(min_length=1)]
    cancels: Cancels

    @model_validator(mode="after")
    def _has_what_it_names(self) -> Self:
        wanted = {modality for modality, weight in self.modalities.items() if weight}
        if wanted & {"image", "multi-image"} and self.pictures is None:
            raise ValueError("[modalities] names pictures: add a table [pictures]")
        if "draw" in wanted and self.draw is None:
            raise ValueError("[modalities] names draw: add a table [draw]")
        if not sum(one.share for one in self.classes.values()) > 0:
            raise ValueError("[classes]: give one of them a share above 0")
        return self

    @classmethod
    def load(cls, file: Path) -> Self:
        """Raises BadProfile naming file, key and fault."""
        try:
            return cls.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise BadProfile(f"{file}: there is no such file; perf/profiles holds some") from None
        except (OSError, UnicodeDecodeError) as error:
            raise BadProfile(f"{file} cannot be read as text: {reason(error)}") from None
        except tomllib.TOMLDecodeError as error:
            raise BadProfile(f"{file}: {error}") from None
        except ValidationError as error:
            told = [f"{'.'.join(map(str, one['loc'])) or 'profile'}: {one['msg']}" for one in error.errors()]
            raise BadProfile(f"{file}: {'; '.join(told)}") from None


class BadProfile(Exception):
    """A file that is no profile."""
