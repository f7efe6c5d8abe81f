"""A checkpoint's chat template, compiled the way its publisher's tools do it, in a sandbox"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Sources: transformers 5.24, utils/chat_template_utils.py: the filters and globals that templates
# on the Hub expect, with the same whitespace rules.


class Generation(Extension):
    """`{% generation %}` marks what training masks; here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The statements up to `{% endgeneration %}`; what they set stays among them."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Names(jinja2.utils.Namespace):
    """`namespace(...)` without names that reach into Python."""

    def __init__(*args: Any, **names: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **names):
            _checked(name)
        jinja2.utils.Namespace.__init__(self, *rest, **names)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(_checked(name), value)


class Dict:
    """`dict(...)` without the class behind it."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """`dict.fromkeys`."""
        return dict.fromkeys(*args)


def _checked(name: str) -> str:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}")
    return name


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def compiled(source: str, now: Callable[[], datetime], mark: str) -> jinja2.Template:
    """The template; raises jinja2.TemplateSyntaxError. `now` is its clock, and `mark` a character
    that its JSON leaves as it is."""

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        return text.replace(json.dumps(mark)[1:-1], mark) if ensure_ascii else text

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, "jinja2.ext.loopcontrols"],
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: now().strftime(form),
        "dict": Dict(),
        "namespace": Names,
    }
    return sandbox.from_string(source)
