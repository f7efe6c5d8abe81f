"""Errors as OpenAI's SDK reads them, with the headers that clients obey.

Method: every constructor's status, body and headers, one by one; the SDK itself makes an exception
of each body, and its class, code and param are looked at.
"""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from serve import errors
from serve.errors import ApiError

CASES: list[tuple[ApiError, int, str, str | None, type[Exception]]] = [
    (errors.bad_request("no", "n"), 400, errors.INVALID, None, openai.BadRequestError),
    (
        errors.unsupported("no", "n"),
        *(400, errors.INVALID, "unsupported_parameter", openai.BadRequestError),
    ),
    (
        errors.context_length_exceeded(9_000, 8_192),
        *(400, errors.INVALID, "context_length_exceeded", openai.BadRequestError),
    ),
    (
        errors.unauthorized(),
        *(401, errors.INVALID, "invalid_api_key", openai.AuthenticationError),
    ),
    (
        errors.forbidden("no"),
        *(403, "permission_error", "forbidden", openai.PermissionDeniedError),
    ),
    (
        errors.model_not_found("gpt"),
        *(404, errors.INVALID, "model_not_found", openai.NotFoundError),
    ),
    (
        errors.not_allowed("PUT", "/health"),
        *(405, errors.INVALID, "method_not_allowed", openai.APIStatusError),
    ),
    (errors.busy("no"), 409, "conflict_error", "busy", openai.ConflictError),
    (errors.too_large(5), 413, errors.INVALID, "request_too_large", openai.APIStatusError),
    (errors.failed(), 500, "server_error", "internal_error", openai.InternalServerError),
    (errors.no_room("no", 2.1), 503, "server_error", "no_room", openai.InternalServerError),
    (errors.stopping(), 503, "server_error", "stopping", openai.InternalServerError),
]


@pytest.mark.parametrize(("error", "status", "kind", "code", "raised"), CASES)
def test_the_sdk_reads_each(
    error: ApiError, status: int, kind: str, code: str | None, raised: type[Exception]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(error.status, json=error.body(), headers=error.headers)

    http = httpx.Client(transport=httpx.MockTransport(answer))
    with http, openai.OpenAI(api_key="k", base_url="http://t/v1", http_client=http) as whole:
        client = whole.with_options(max_retries=0)
        with pytest.raises(raised) as found:
            client.models.list()
    seen = found.value
    assert isinstance(seen, openai.APIStatusError)
    assert (seen.status_code, seen.type, seen.code) == (status, kind, code)
    assert seen.param == error.param and error.message in str(seen)


def test_when_to_come_again_is_whole_seconds_and_at_least_one() -> None:
    assert errors.no_room("no", 2.1).headers == {"Retry-After": "3"}
    assert errors.busy("no", 0.01).headers == {"Retry-After": "1"}
    assert errors.bad_request("no").headers == {}


def test_what_is_quoted_is_short_and_can_be_sent() -> None:
    error = errors.bad_request("x" * 5_000 + "\ud800")
    assert len(error.message) == errors.MESSAGE_CHARACTERS_MAX
    json.dumps(errors.bad_request("a\ud800b").body(), ensure_ascii=False).encode()
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert errors.shown(deep) == "something nested too deep"
    assert errors.shown(10**10_000) == "a huge number" and errors.shown(-3) == "-3"
    assert len(errors.shown("y" * 500)) == 80


def test_canary_a_message_with_half_a_character_cannot_be_sent() -> None:
    with pytest.raises(UnicodeEncodeError):
        "a\ud800b".encode()
