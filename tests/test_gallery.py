"""Goal: an image is what its pixels are, decoded once however often it is sent.

Method: photos made by code, sent again, under other encodings and names, with other pixels, over a
budget; what is decoded is counted, and a gallery that keeps nothing is the twin of one that does.
"""

from __future__ import annotations

import pytest
import torch
from photos import attached, data_url, image_part, photo

from engine.chat.gallery import Gallery
from engine.chat.messages import ChatError, Show, messages_of
from engine.pictures.decode import Limits, Refused
from engine.pictures.patches import PatchConfig

SMALL = PatchConfig(min_pixels=9_216, max_pixels=40_000)
"""Nine rows and more: 27,648 bytes of patches for a photo of 96 by 96."""
PATCHES = 96 * 96 * 3
FIRST, SECOND = (data_url(photo(seed)) for seed in (1, 2))


def gallery(photos: int = 8, **more: int) -> Gallery:
    """One with room for so many photos."""
    return Gallery(patches=SMALL, budget_bytes=photos * PATCHES, **more)


def seen(of: Gallery, url: str) -> Show:
    shown = of.see(url)
    assert isinstance(shown, Show), shown
    return shown


def test_an_image_that_is_sent_again_is_not_decoded_again() -> None:
    of = gallery()
    first = seen(of, FIRST)
    assert all(seen(of, FIRST) == first for _ in range(5))
    picture = of.picture(first)
    assert picture.patches is not None and picture.digest == first.digest
    assert first.picture.patches is None and first.picture.grid == picture.grid == (1, 6, 6)
    assert of.decoded == 1 and of.held_bytes == PATCHES


def test_equal_pixels_are_one_picture_under_any_encoding_and_name() -> None:
    of = gallery()
    packed = data_url(photo(1), compress_level=0)
    named = FIRST.replace("data:image/png;", "data:image/png;name=cat.png;")
    assert len({FIRST, packed, named}) == 3
    shown = {seen(of, url) for url in (FIRST, packed, named)}
    assert len(shown) == 1 and of.decoded == 3 and of.held_bytes == PATCHES
    (one,), (two,) = (messages_of([attached("?", ("cat.png", u))], of.see) for u in (FIRST, packed))
    assert one == two


def test_new_pixels_under_one_name_are_another_picture() -> None:
    of = gallery()
    old, new = (messages_of([attached("?", ("cat.png", u))], of.see)[0] for u in (FIRST, SECOND))
    assert old.content == new.content and old != new


def test_over_its_budget_it_lets_go_of_the_patches_used_longest_ago() -> None:
    of, plain = gallery(2), gallery(0)
    shown = [seen(of, data_url(photo(seed))) for seed in (1, 2)]
    of.picture(shown[0])
    shown.append(seen(of, data_url(photo(3))))
    assert of.decoded == 3 and of.held_bytes == 2 * PATCHES
    for image, decoded in ((shown[0], 3), (shown[2], 3), (shown[1], 4)):
        ours, theirs = of.picture(image), plain.picture(image)
        assert of.decoded == decoded
        assert ours.patches is not None and theirs.patches is not None
        assert torch.equal(ours.patches, theirs.patches)
    assert of.held_bytes == 2 * PATCHES and plain.held_bytes == 0
    # Forgotten patches cost no picture its name.
    assert seen(of, FIRST) == shown[0] and of.decoded == 4


def test_it_remembers_so_many_urls() -> None:
    of = gallery(0, urls=2)
    for seed, decoded in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)):
        seen(of, data_url(photo(seed)))
        assert of.decoded == decoded


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.org/cat.png", "is not fetched"),
        ("cat.png", "is no data: URL"),
        ("data:image/png;base64,AAAA", "not PNG"),
        (FIRST[: len("data:image/png;base64,") + 400], "broken or cut off"),
        ("data:image/png;base64,\ud800", "no valid base64"),
        (data_url(photo(1, 300, 200)), "300 x 200 pixels"),
    ],
)
def test_what_is_no_image_is_refused_and_the_rest_works(url: str, why: str) -> None:
    of = Gallery(Limits(decoded_pixels=10_000), SMALL)
    for _ in range(2):
        refused = of.see(url)
        assert isinstance(refused, Refused) and why in refused.why and "\n" not in refused.why
    assert of.decoded == 1 and of.held_bytes == 0
    content = [image_part(FIRST), image_part(url)]
    with pytest.raises(ChatError, match=f"message 1, part 1: .*{why}"):
        messages_of([attached("?"), {"role": "user", "content": content}], of.see)
    assert messages_of([{"role": "user", "content": content[:1]}], of.see)[0].images
