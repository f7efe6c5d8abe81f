"""Training of the bundled tokenizer, run by hand from the Python standard library's text.

    python -m engine.chat.train [OUT]        writes engine/chat/tokenizer.json, about a minute

The corpus is always present and may be shipped: the sources, docstrings and topics of the standard
library (PSF licence), and text made from them in the shapes of chat traffic: tool schemas and calls
as JSON and as XML parameters, numbered file listings, markdown answers, shell output. Everything
is in a fixed order and every draw is seeded, so that one Python version gives one file, byte for
byte; the committed file was trained on CPython 3.11.7 with tokenizers 0.23.3.
"""

from __future__ import annotations

import ast
import inspect
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.chat.tokenizer import SPECIALS

VOCAB = 16_384
"""Entries with the special ones, which come last."""
SEED = 20
SKIP = {"test", "tests", "idle_test", "encodings", "site-packages", "turtledemo", "__pycache__"}
"""Folders of the standard library that hold tables and test data."""

# How text is cut before any merge: a contraction; one digit; a word with at most one character
# before it; a run of punctuation with a blank before it and line ends behind it; the line ends of
# a blank run; blanks up to the one that belongs to the next word; other blanks.
PIECES = (
    r"'(?i:ll|re|ve|[dmst])(?!\p{L})"
    r"|\p{N}"
    r"|[^\p{L}\p{N}\r\n]?[\p{L}\p{M}]+"
    r"| ?[^\p{L}\p{N}\s]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

JSON_TYPES = {"int": "number", "float": "number", "bool": "boolean", "str": "string"}
OPENINGS = ("Let me look at", "I'll check", "The user wants", "Now I can see", "It's all in")
VERBS = ("Reads", "Writes", "Searches", "Lists", "Updates", "Runs", "Fetches", "Checks")
SHELL = ("git status", "ls -la", "grep -rn", "python3 -m", "sed -n", "git diff --stat", "pytest -q")


def modules() -> Iterator[tuple[str, str]]:
    """(path inside the standard library, source) of every module, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if SKIP.isdisjoint(inside.parts):
            yield inside.as_posix(), path.read_text(encoding="utf-8", errors="replace")


def documented(tree: ast.Module) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """(name, docstring, [(argument, JSON type)]) of everything documented in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if not text:
                continue
            args: list[tuple[str, str]] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for arg in node.args.args:
                    kind = ast.unparse(arg.annotation) if arg.annotation else "str"
                    args.append((arg.arg, JSON_TYPES.get(kind, "string")))
            yield getattr(node, "name", "module"), inspect.cleandoc(text), args


def comments(source: str) -> str:
    """The prose of a source's comment blocks."""
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line.lstrip("# ") for line in lines if line.startswith("# "))


def compact(value: Any) -> str:
    """JSON the way clients send it: no blanks, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schema(name: str, text: str, args: list[tuple[str, str]], draw: random.Random) -> str:
    """A tool's definition made from a documented function."""
    words = text.replace("\n", " ").split(". ")
    properties = {
        arg: {"description": draw.choice(words)[:120], "type": kind} for arg, kind in args
    }
    required = [arg for arg, _ in args[: 1 + draw.randrange(3)]]
    return compact(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": text,
                "parameters": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema",
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    "additionalProperties": False,
                },
            },
        }
    )


def calls(path: str, source: str, draw: random.Random) -> str:
    """One file read, edited and run: calls as JSON and as XML parameters, and their results."""
    lines = source.splitlines()
    at = draw.randrange(max(1, len(lines) - 40))
    piece = lines[at : at + 40]
    listing = "\n".join(f"{at + i + 1}: {line}" for i, line in enumerate(piece))
    padded = "\n".join(f"{at + i + 1:5d}\t{line}" for i, line in enumerate(piece))
    edit = {"filePath": f"/home/user/src/{path}", "oldString": piece[0], "newString": piece[-1]}
    command = f"{draw.choice(SHELL)} {path}"
    return (
        f"<path>/home/user/src/{path}</path>\n<type>file</type>\n<content>\n{listing}\n</content>\n"
        f"{padded}\n"
        + compact({"command": command, "description": f"{draw.choice(VERBS)} {path}"})
        + compact({"name": "edit", "arguments": compact(edit)})
        + "\n<tool_call>\n<function=edit>\n<parameter=filePath>\n"
        + f"/home/user/src/{path}\n</parameter>\n<parameter=oldString>\n{piece[0]}\n</parameter>\n"
        + f"</function>\n</tool_call>\n$ {command}\n{path}:{at}: {piece[0]}\n"
        + compact({"role": "user", "content": "\n".join(piece[:8])})
    )


def markdown(path: str, name: str, text: str, draw: random.Random) -> str:
    """An answer about a documented thing, as a chat model formats it."""
    first, *rest = [line for line in text.splitlines() if line.strip()]
    bullets = "\n".join(f"- **{name}**: {line.strip()}" for line in rest[:6])
    opening = draw.choice(
        (
            "Let me look at",
            "I'll check",
            "The user wants",
            "Now I can see",
            "Here's what I found in",
        )
    )
    return (
        f"{opening} `{path}`.\n\n## {name}\n\n{first}\n\n{bullets}\n\n"
        f"1. {first}\n2. It's in `{path}`.\n\n```python\nfrom {path[:-3].replace('/', '.')} import"
        f" {name}\n```\n\n| Name | What it does |\n|---|---|\n| `{name}` | {first} |\n"
    )


def corpus() -> Iterator[str]:
    """Every training text, in a fixed order."""
    draw = random.Random(SEED)
    for path, source in modules():
        try:
            tree = ast.parse(source)
        except SyntaxError:  # lib2to3 keeps a few Python 2 files
            continue
        if path == "pydoc_data/topics.py":
            yield from (
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            continue
        yield source
        yield comments(source)
        if source.strip():
            yield calls(path, source, draw)
        for name, text, args in documented(tree):
            yield text
            yield text.replace("\n", " ")
            yield markdown(path, name, text, draw)
            if args:
                yield schema(name, text, args, draw)


def train() -> Tokenizer:
    """A byte-level BPE over the corpus: no normalisation, so that text comes back byte for byte."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=48,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    return tokenizer


def main() -> None:
    """Train and write the file."""
    here = Path(__file__).with_name("tokenizer.json")
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    train().save(str(out), pretty=False)
    sys.stdout.write(f"{out}: {out.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
