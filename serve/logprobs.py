"""Log probabilities as OpenAI's clients read them, for chat answers and for text completions"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Sequence
from typing import Any

from engine.scored import Score

LEAST = -9999.0
"""What stands for a token that is impossible: JSON has no infinity."""

BytesOf = Callable[[int], bytes]
"""The bytes of a token; one may be a part of a character only."""


def seen(
    scores: Sequence[Score],
    hidden: Sequence[tuple[int, int]] = (),
    start: int = 0,
    stop: int | None = None,
) -> list[Score]:
    """The scores of answer tokens [start, stop) that the client sees; `hidden` as (start, length).

    `scores` may run past the answer, so that `stop` is its size when it has ended.
    """
    stop = len(scores) if stop is None else min(stop, len(scores))
    unseen = {at for first, length in hidden for at in range(first, first + length)}
    return [scores[at] for at in range(start, stop) if at not in unseen]


def chat_logprobs(scores: Sequence[Score], bytes_of: BytesOf) -> dict[str, Any]:
    """`logprobs` of a chat choice, or of one of its frames."""
    content = [
        {
            **_entry(score.token, score.logprob, bytes_of),
            "top_logprobs": [_entry(token, value, bytes_of) for token, value in score.top],
        }
        for score in scores
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, bytes_of: BytesOf) -> dict[str, Any]:
    data = bytes_of(token)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": _finite(logprob),
        "bytes": list(data),
    }


class TextLogprobs:
    """`logprobs` of a text completion; tells where in the text each token begins."""

    def __init__(self, bytes_of: BytesOf, offset: int = 0) -> None:
        """`offset` is how many characters of the text come before the answer."""
        self._bytes_of = bytes_of
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, scores: Sequence[Score]) -> dict[str, Any]:
        """Those of the answer's next tokens."""
        offsets = []
        for score in scores:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._bytes_of(score.token)))
        return {
            "tokens": [self._name(score.token) for score in scores],
            "token_logprobs": [_finite(score.logprob) for score in scores],
            "top_logprobs": [self._top(score) for score in scores],
            "text_offset": offsets,
        }

    def _top(self, score: Score) -> dict[str, float]:
        """The likeliest by name, and the token itself, so that it may be one more than asked."""
        found = [*score.top, (score.token, score.logprob)]
        named: dict[str, float] = {}
        for token, logprob in found:
            # Of two tokens of the same text the likelier counts.
            named.setdefault(self._name(token), _finite(logprob))
        return named

    def _name(self, token: int) -> str:
        """A token's text; a part of a character has its bytes instead."""
        data = self._bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST
