"""What the bodies of both completion routes have in common: sampling, limits, what is refused

Bodies are read strictly where a value makes no sense, and leniently where real clients differ: a
field that is null counts as absent, and one that nobody here knows is ignored.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from engine.penalties import BIAS_MAX, Penalties
from engine.sampling import Sampling
from serve.errors import bad_request, shown, unsupported
from serve.wish import CHOICES_MAX, Defaults

TOKENS_MAX = 2**31 - 1
STOPS_MAX = 16
STOP_CHARACTERS_MAX = 1_000
BIASES_MAX = 1_024
COLD = 1e-5
"""A temperature below it is greedy: logits divided by it are no longer numbers."""


def _whole(value: Any) -> Any:
    """3.0 is 3: some clients have floats only."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Budget = Annotated[Whole, Field(ge=-1, le=TOKENS_MAX)]
"""Tokens of thinking; -1 is no limit."""
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]


class StreamOptions(BaseModel):
    """What a stream brings beside the answer."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class Body(BaseModel):
    """The fields that both routes have."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=())

    REFUSED: ClassVar[tuple[str, ...]] = (
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "grammar",
        "json_schema",
    )
    """Fields that promise a form of answer which nothing here holds a model to."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=1, le=TOKENS_MAX)] | None = None
    n: Annotated[Whole, Field(ge=1, le=CHOICES_MAX)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[Whole, Field(ge=-1, le=TOKENS_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10.0)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-BIAS_MAX, le=BIAS_MAX)]] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        for name in cls.REFUSED if isinstance(data, dict) else ():
            if data.get(name) is not None:
                raise unsupported(f"{name} is not supported: answers are not constrained.", name)
        return data

    @field_validator("stop", mode="before")
    @classmethod
    def _stop(cls, value: Any) -> Any:
        texts = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(text, str) for text in texts):
            raise ValueError("should be a string or a list of strings")
        return value

    @classmethod
    def of(cls, data: object) -> Self:
        """The body that a JSON value is; raises ApiError for the first field that is wrong."""
        return checked(cls, data)

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces."""
        return bool(self.stream)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def stops(self) -> tuple[str, ...]:
        """The strings that end the answer; raises ApiError."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(texts) > STOPS_MAX:
            raise bad_request(f"stop has {len(texts)} strings; {STOPS_MAX} are the most.", "stop")
        if not all(texts):
            raise bad_request("stop has an empty string, which is everywhere.", "stop")
        if any(len(text) > STOP_CHARACTERS_MAX for text in texts):
            raise bad_request(
                f"A string in stop is longer than {STOP_CHARACTERS_MAX} characters.", "stop"
            )
        return tuple(dict.fromkeys(texts))

    def sampling(self, defaults: Defaults) -> Sampling:
        """The sampling, with the model's own where the request names none."""
        own = defaults.sampling
        temperature = _or(self.temperature, own.temperature)
        return Sampling(
            temperature=temperature if temperature >= COLD else 0.0,
            top_p=_or(self.top_p, own.top_p),
            top_k=max(0, _or(self.top_k, own.top_k)),
            seed=_or(self.seed, defaults.seed),
            min_p=_or(self.min_p, own.min_p),
        )

    def penalties(self, defaults: Defaults) -> Penalties:
        """The penalties and biases; raises ApiError."""
        return Penalties(
            presence=_or(self.presence_penalty, 0.0),
            frequency=_or(self.frequency_penalty, 0.0),
            repetition=_or(self.repetition_penalty, defaults.repetition),
            bias=_bias(self.logit_bias or {}, defaults.vocab),
        )


T = TypeVar("T")


def _or(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _bias(given: dict[str, float], vocab: int) -> tuple[tuple[int, float], ...]:
    """Token ids and what is added to their logits, ascending."""
    if len(given) > BIASES_MAX:
        raise bad_request(
            f"logit_bias has {len(given)} tokens; {BIASES_MAX} are the most.", "logit_bias"
        )
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocab):
            raise bad_request(
                f"logit_bias has {shown(key)}, which is no token id below {vocab}.", "logit_bias"
            )
    found = {int(key): value for key, value in given.items()}
    return tuple(sorted((token, value) for token, value in found.items() if value))


B = TypeVar("B", bound=BaseModel)

_DICTIONARY = re.compile(r"a valid dictionary( or instance of \w+)?")
"""What JSON calls an object."""


def checked(kind: type[B], data: object) -> B:
    """`data` as a model; raises ApiError for the first field that is wrong."""
    if not isinstance(data, dict):
        raise bad_request(f"The body should be a JSON object, not {shown(data)}.")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    param = _param(first["loc"])
    if first["type"] == "missing":
        raise bad_request(f"{param} is missing.", param)
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    text = _DICTIONARY.sub("an object", text)
    raise bad_request(f"{param} {text}, not {shown(first['input'])}.", param)


def _param(loc: tuple[int | str, ...]) -> str:
    """The field as a client would write it, without pydantic's names of a union's members."""
    name = str(loc[0])
    for at, part in enumerate(loc[1:], 1):
        if isinstance(part, int):
            name += f"[{part}]"
        elif at == 1 and name in ("stream_options", "reasoning", "thinking", "logit_bias"):
            name += f".{part}"
    return name
