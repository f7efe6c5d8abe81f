"""The tokenizer keeps text byte for byte, and content can't become structure.

Method: arbitrary text goes there and back; the file's shape, the cutting rules and the classes are
looked at token by token; the committed file is trained again and compared (slow).
"""

from __future__ import annotations

import platform
from importlib.resources import files

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat.tokenizer import SPECIAL, SPECIALS, TEXT, WHITESPACE, Tokenizer
from engine.chat.train import VOCAB, train

TOKENIZER = Tokenizer()
TRAINED_WITH = ("3.11.7", "0.23.3")
"""CPython and tokenizers of the committed file."""

PROSE = """You are an interactive coding agent. Use the tools below to help the user with software
engineering tasks. Keep answers short, and never create files unless they're needed for the task.

- Before you edit a file, read it: `oldString` must match exactly, including whitespace.
- Run the tests with the `bash` tool and report what failed, e.g. "2 failed, 31 passed".

{"type":"function","function":{"name":"read","description":"Reads a file from the local filesystem.
Returns lines with their numbers.","parameters":{"type":"object","properties":{"filePath":{"type":
"string","description":"The absolute path to the file to read"}},"required":["filePath"]}}}
<path>/home/user/src/app.py</path>
1: def main() -> None:
2:     for name in sorted(names):
3:         print(f"hello {name}")
"""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
spiced = st.lists(
    st.sampled_from([*SPECIALS, "<|im", "_end|>", "\n", " ", "a"]) | texts, max_size=8
)


def token_bytes(id: int) -> bytes:
    return TOKENIZER.text(np.array([id], np.int32))


def pieces(text: str) -> list[str]:
    return [
        token_bytes(id).decode("utf-8", "replace")
        for id in TOKENIZER.encode(text, specials=False).tolist()
    ]


@given(spiced.map("".join))
@settings(deadline=None)
def test_text_comes_back_byte_for_byte(text: str) -> None:
    ids = TOKENIZER.encode(text, specials=False)
    assert ids.dtype == np.int32
    assert TOKENIZER.decode(ids) == text
    assert b"".join(token_bytes(id) for id in ids.tolist()) == text.encode()


@given(spiced.map("".join))
@settings(deadline=None)
def test_content_never_becomes_a_special_token(text: str) -> None:
    ids = TOKENIZER.encode(text, specials=False)
    assert not TOKENIZER.structure(ids).any()


@pytest.mark.parametrize("name", SPECIALS)
def test_template_text_does_and_the_flag_of_one_call_does_not_stick(name: str) -> None:
    as_text = TOKENIZER.encode(name, specials=False)
    assert TOKENIZER.encode(name, specials=True).tolist() == [TOKENIZER.ids[name]]
    assert TOKENIZER.encode(name, specials=False).tolist() == as_text.tolist()
    assert len(as_text) > 1
    assert TOKENIZER.decode(np.array([TOKENIZER.ids[name]], np.int32)) == name


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud83d b", specials=False)) == "a\ufffd b"
    assert TOKENIZER.decode(TOKENIZER.encode("\ud83d\ude42", specials=False)) == "\U0001f642"


def test_how_text_is_cut() -> None:
    assert pieces("in 2026") == ["in", " ", "2", "0", "2", "6"]
    assert pieces("it's")[-1] == "'s" and pieces("'string'")[:2] != ["'s", "tring"]
    assert pieces("\n\n\n") == ["\n\n\n"]
    assert pieces("x\n        return") == ["x", "\n", "       ", " return"]
    assert pieces("a   ") == ["a", "   "]
    assert len(pieces("🙂")) > 1  # no token of its own: bytes


def test_the_vocabulary() -> None:
    assert TOKENIZER.vocab == VOCAB == 16_384
    assert [TOKENIZER.ids[name] for name in SPECIALS] == list(range(VOCAB - len(SPECIALS), VOCAB))
    assert len({token_bytes(id) for id in range(VOCAB)}) == VOCAB
    single = {token_bytes(id) for id in range(VOCAB)}
    assert all(bytes([byte]) in single for byte in range(256))


def test_the_classes_of_tokens() -> None:
    classes = TOKENIZER.classes
    assert np.bincount(classes).tolist()[SPECIAL] == len(SPECIALS)
    for id in range(VOCAB - len(SPECIALS)):
        try:
            blank = token_bytes(id).decode().isspace()
        except UnicodeDecodeError:
            blank = False
        assert classes[id] == (WHITESPACE if blank else TEXT)
        assert TOKENIZER.blank(np.array([id], np.int32))[0] == blank
    assert {"\n", " ", "\t", "\n\n"} <= {
        token_bytes(id).decode() for id in np.flatnonzero(classes == WHITESPACE).tolist()
    }


def test_the_file_is_small_and_has_a_digest() -> None:
    data = files("engine.chat").joinpath("tokenizer.json").read_bytes()
    assert len(data) < 1_500_000
    assert Tokenizer(data).sha256 == TOKENIZER.sha256
    spaced = data.replace(b'{"version"', b'{ "version"', 1)
    assert Tokenizer(spaced).sha256 != TOKENIZER.sha256


def test_the_library_decodes_the_same() -> None:
    data = files("engine.chat").joinpath("tokenizer.json").read_bytes()
    library = tokenizers.Tokenizer.from_buffer(data)
    ids = TOKENIZER.encode(PROSE, specials=False)
    assert library.decode(ids.tolist(), skip_special_tokens=False) == PROSE == TOKENIZER.decode(ids)


def test_a_coding_agents_text_packs_well() -> None:
    assert len(PROSE) / len(TOKENIZER.encode(PROSE, specials=False)) >= 3.2


@pytest.mark.slow
@pytest.mark.skipif(
    (platform.python_version(), tokenizers.__version__) != TRAINED_WITH,
    reason=f"the committed file was trained with CPython and tokenizers {TRAINED_WITH}",
)
def test_the_committed_file_is_what_the_training_writes() -> None:
    committed = files("engine.chat").joinpath("tokenizer.json").read_text(encoding="utf-8")
    assert train().to_str(pretty=False) == committed
