"""The body of a text completion request, checked"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from serve.errors import bad_request, shown, unsupported
from serve.wire import Body, Whole
from serve.wish import CHOICES_MAX, Defaults, Wish

ANSWER_TOKENS = 16
"""The length of an answer when the request says none, as the API has it."""

Text = str | tuple[int, ...]
"""A prompt: text, or token ids."""


class CompletionBody(Body):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    suffix: str | None = None
    best_of: Annotated[Whole, Field(ge=1, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=5)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt(cls, value: Any) -> Any:
        if not isinstance(value, str) and not (isinstance(value, list) and _read(value)):
            raise ValueError("should be text, token ids, or a list of either")
        return value

    def prompts(self, vocab: int) -> tuple[Text, ...]:
        """The prompts, at least one and none of them empty; raises ApiError."""
        given = [self.prompt] if isinstance(self.prompt, str) else _read(self.prompt)
        if len(given) * (self.n or 1) > CHOICES_MAX:
            raise bad_request(
                f"{len(given)} prompts with n = {self.n or 1} are more than {CHOICES_MAX} answers.",
                "prompt",
            )
        found = [text if isinstance(text, str) else tuple(text) for text in given]
        for text in found:
            if not text:
                raise bad_request("prompt is empty.", "prompt")
            wrong = () if isinstance(text, str) else [t for t in text if not 0 <= t < vocab]
            if wrong:
                raise bad_request(
                    f"prompt has {shown(wrong[0])}, which is no token id below {vocab}.", "prompt"
                )
        return tuple(found)

    def wish(self, defaults: Defaults) -> Wish:
        """What is asked of the answers; raises ApiError for what makes no sense."""
        self.prompts(defaults.vocab)
        if self.suffix:
            raise unsupported("suffix is not supported: nothing is inserted.", "suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of is not supported: all n answers are given.", "best_of")
        if self.echo and self.logprobs is not None:
            raise unsupported("A prompt is given back without its logprobs.", "echo")
        return Wish(
            model=self.model or "",
            stream=self.streams,
            include_usage=self.with_usage,
            n=self.n or 1,
            answer_max=ANSWER_TOKENS if self.max_tokens is None else self.max_tokens,
            stop=self.stops(),
            sampling=self.sampling(defaults),
            penalties=self.penalties(defaults),
            logprobs=self.logprobs,
            echo=bool(self.echo),
        )


def _read(value: list[Any]) -> list[str | list[int]]:
    """A list's prompts, one each; nothing when it holds something else."""
    if value and all(type(item) is int for item in value):
        return [value]
    if all(isinstance(item, str) for item in value):
        return value
    if all(isinstance(item, list) and all(type(t) is int for t in item) for item in value):
        return value
    return []
