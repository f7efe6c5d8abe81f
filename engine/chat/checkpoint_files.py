"""What a checkpoint directory says of its chat: tokenizer, template, stop tokens, sampling"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bad import BadInput
from engine.chat.dialect import Defaults
from engine.chat.tokenizer import Tokenizer
from engine.checkpoint.json_file import read_bytes, read_object, read_text
from engine.config import VOCAB_MAX

_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
"""Tokens that end an answer where they exist, whatever the files say."""


@dataclass(frozen=True, slots=True)
class Files:
    """What the files say."""

    tokenizer: Tokenizer
    template: str
    template_file: str
    named: Mapping[str, str]
    """Special tokens by the names that templates know them by: bos_token and such."""
    stop_ids: frozenset[int]
    defaults: Defaults


def read_files(directory: Path) -> Files:
    """Read them; raises BadInput in one line."""
    try:
        found = directory.is_dir()
    except OSError as error:
        raise BadInput(str(directory), None, f"is no directory: {error.strerror}") from error
    if not found:
        raise BadInput(str(directory), None, "is no directory")
    config = read_object(directory / "tokenizer_config.json", optional=True)
    generation = read_object(directory / "generation_config.json", optional=True)
    template, template_file = _template(directory, config)
    tokenizer = _tokenizer(directory, template)
    named = dict(_named(config))
    stop_ids = frozenset(_stop_ids(directory, generation, tokenizer, named))
    if not stop_ids:
        raise BadInput(str(directory), None, "no file names a token that ends an answer")
    defaults = _defaults(directory / "generation_config.json", generation)
    return Files(tokenizer, template, template_file, named, stop_ids, defaults)


def _template(directory: Path, config: Mapping[str, Any]) -> tuple[str, str]:
    """The chat template, and the file it is from."""
    path = directory / "chat_template.jinja"
    if (text := read_text(path, optional=True)) is not None:
        return text, str(path)
    path = directory / "chat_template.json"
    given = read_object(path, optional=True).get("chat_template")
    if given is None:
        path, given = directory / "tokenizer_config.json", config.get("chat_template")
    if isinstance(given, list):  # several by name
        each = [item for item in given if isinstance(item, dict)]
        given = next((i.get("template") for i in each if i.get("name") == "default"), None)
    if not isinstance(given, str):
        raise BadInput(str(directory), None, "no file has a chat template")
    return given, str(path)


def _tokenizer(directory: Path, template: str) -> Tokenizer:
    """The tokenizer; what the template writes of its added tokens is structure."""
    path = directory / "tokenizer.json"
    data = read_bytes(path)
    assert data is not None
    try:
        added = json.loads(data)["added_tokens"]
        written = [t["content"] for t in added if t["content"] in template]
        config = read_object(directory / "config.json", optional=True)
        text_config = config.get("text_config")
        sizes = (c.get("vocab_size") for c in (config, text_config) if isinstance(c, dict))
        vocab = max((size for size in sizes if isinstance(size, int)), default=0)
        if vocab > VOCAB_MAX:
            what = f"a vocabulary of {vocab:,} is above {VOCAB_MAX:,}"
            raise BadInput(str(directory / "config.json"), None, what)
        tokenizer = Tokenizer(
            data,
            structure=[name for name in written if name.strip() and not name.isalnum()],
            vocab=vocab,
            name=directory.resolve().name,
        )
    except BadInput:
        raise
    except Exception as error:
        what = " ".join(str(error).split())
        raise BadInput(str(path), None, f"is no tokenizer: {what}") from error
    try:
        _ = tokenizer.classes
    except KeyError as error:
        raise BadInput(str(path), None, "its vocabulary is not byte-level") from error
    return tokenizer


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """bos_token and such: a text, or an object with one."""
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            yield name, content


def _stop_ids(
    directory: Path, generation: Mapping[str, Any], tokenizer: Tokenizer, named: Mapping[str, str]
) -> Iterator[int]:
    given = generation.get("eos_token_id")
    for id in given if isinstance(given, list) else [given]:
        if id is None:
            continue
        if not isinstance(id, int) or not 0 <= id < tokenizer.vocab:
            path = str(directory / "generation_config.json")
            raise BadInput(path, None, f"eos_token_id {id!r} is no token")
        yield id
    for name in (named.get("eos_token"), *_ENDS):
        if name in tokenizer.ids:
            yield tokenizer.ids[name]


def _defaults(path: Path, generation: Mapping[str, Any]) -> Defaults:
    """The sampling; one that is off is greedy."""

    def number(name: str, least: float, most: float) -> float | None:
        value = generation.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadInput(str(path), None, f"{name} {value!r} is no number")
        if not least <= value <= most:
            raise BadInput(str(path), None, f"{name} {value!r} is not in {least}..{most}")
        return float(value)

    temperature = number("temperature", 0.0, 100.0)
    if generation.get("do_sample") is False:
        temperature = 0.0
    top_p, top_k = number("top_p", 0.0, 1.0), number("top_k", 0, 1 << 31)
    return Defaults(temperature, top_p or None, None if top_k is None else int(top_k))
