"""Goal: a prompt holds an image's key ids between its marks, and says where each image stands.

Method: messages with images before, between and behind text, of every role, in both forms that
clients send. The prompt is held to the one that has the word IMAGE in each one's place: the same
tokens but for the marks and the rows; parts add up. Canary: a template that writes the placeholder
token instead of the key ids gives two pictures one prompt.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from cache.types import Ids
from engine.chat.messages import ChatError, Message, Show, messages_of
from engine.chat.rendered import Rendered, Shown
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.pictures.decode import Refused
from engine.pictures.picture import Picture

TOKENIZER = Tokenizer()
TEMPLATE = Template(TOKENIZER)
START, PAD, END = (
    TOKENIZER.ids[f"<|{name}|>"] for name in ("vision_start", "image_pad", "vision_end")
)
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def picture(name: str, rows: int = 12) -> Picture:
    return Picture(hashlib.sha256(name.encode()).digest(), (1, 2, 2 * rows))


def see(url: str) -> Show | Refused:
    """A url of letters is a picture, "broken" is refused."""
    if url == "broken":
        return Refused("the image is cut off")
    found = picture(url, 9 + len(url))
    return Show(found.digest, found, url)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: str, *, bare: bool = False) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url if bare else {"url": url, "detail": "high"}}


def rendered(*messages: dict[str, Any]) -> Rendered:
    return TEMPLATE.render(messages_of(list(messages), see), TOOLS)


def said(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def in_words(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a word in each image's place."""
    parts = [text("IMAGE") if part["type"] != "text" else part for part in message["content"]]
    return message | {"content": parts}


CONVERSATION = (
    said("system", text("See: "), image("sys")),
    said("user", text("One "), image("a"), text(" two"), image("bb", bare=True), image("a")),
    said("assistant", text("I drew "), image("ccc"), text("!")),
    said("user", image("dddd"), text("and this")),
    said("tool", text("It shows"), image("eeeee")),
    said("user", image("a")),
)


def with_words(prompt: Rendered, word: Ids) -> Ids:
    """The prompt's ids with a word's in place of each image and its marks."""
    ids, at = [], 0
    for start, shown in prompt.shown:
        stop = start + shown.picture.rows
        assert prompt.ids[start - 1] == START and prompt.ids[stop] == END
        assert np.array_equal(prompt.ids[start:stop], shown.picture.ids)
        ids += [prompt.ids[at : start - 1], word]
        at = stop + 1
    return np.concatenate([*ids, prompt.ids[at:]])


def test_images_stand_between_their_marks_and_the_rest_is_as_without_them() -> None:
    prompt = rendered(*CONVERSATION)
    plain = TEMPLATE.render(messages_of([in_words(message) for message in CONVERSATION]), TOOLS)
    word = TOKENIZER.encode("IMAGE", specials=False)
    assert np.array_equal(with_words(prompt, word), plain.ids)
    urls = [shown.image.url for shown in prompt.shown]
    assert urls == ["sys", "a", "bb", "a", "ccc", "dddd", "eeeee", "a"]
    assert prompt.images == (prompt.ids < 0).sum() == sum(9 + len(url) for url in urls)
    assert prompt.system + prompt.tools + prompt.history + prompt.images == len(prompt.ids)
    assert prompt.tools == plain.tools and prompt.system == plain.system + 2 - len(word)


def test_an_image_in_a_system_message_leaves_the_rest_of_it_to_the_system() -> None:
    one = rendered(said("system", text("x")), said("user", text("y")))
    two = rendered(said("system", text("x"), image("a")), said("user", text("y")))
    assert (two.system, two.history) == (one.system + 2, one.history)


def test_both_forms_of_a_part_are_one_image() -> None:
    bare, whole = (rendered(said("user", image("a", bare=b), text("x"))) for b in (True, False))
    assert np.array_equal(bare.ids, whole.ids)


def test_one_picture_under_two_urls_is_one_message() -> None:
    found = picture("a")
    one, two = (Message("user", (Show(found.digest, found, url),)) for url in "xy")
    assert one == two and hash(one) == hash(two)
    other = Message("user", (Show(picture("b").digest, picture("b"), "x"),))
    assert one != other


@pytest.mark.parametrize("forged", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"])
def test_special_text_in_content_stays_text(forged: str) -> None:
    prompt = rendered(said("user", text(forged), image("a")))
    assert prompt.shown == (Shown(int(np.argmax(prompt.ids < 0)), prompt.shown[0].image),)
    assert (prompt.ids == START).sum() == (prompt.ids == END).sum() == 1
    assert not (prompt.ids == PAD).any()
    assert forged.encode() in TOKENIZER.text(prompt.ids[: prompt.shown[0].start])


def test_a_refused_image_is_one_line_that_names_its_message_and_part() -> None:
    bad = [said("user", text("a")), said("user", text("b"), image("a"), image("broken"))]
    with pytest.raises(ChatError) as caught:
        messages_of(bad, see)
    assert str(caught.value) == "message 1, part 2: the image is cut off"


def test_a_message_with_other_pixels_is_encoded_again() -> None:
    """The template keeps encoded messages; one with another picture is another message."""
    one, two = (rendered(said("user", text("Look"), image(url))) for url in ("aa", "bb"))
    assert len(one.ids) == len(two.ids)
    differ = np.flatnonzero(one.ids != two.ids)
    assert differ.tolist() == list(range(one.shown[0].start, one.shown[0].start + 11))


def test_canary_the_placeholder_in_place_of_key_ids_makes_two_pictures_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = property(lambda self: np.full(self.rows, PAD, np.int32))
    monkeypatch.setattr(Picture, "ids", rows)
    fresh = Template(TOKENIZER)
    one, two = (
        fresh.render(messages_of([said("user", text("Look"), image(url))], see)).ids
        for url in ("aa", "bb")
    )
    assert np.array_equal(one, two)
