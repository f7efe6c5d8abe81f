"""What a client sends as an image becomes pixels, or one line that says why not.

Goal: engine.pictures.decode reads PNG, JPEG, WebP and GIF by their content, as they are to be seen,
and refuses all else with one line; no bytes and no URL make it raise. Method: files written by
Pillow in every mode, orientation and transparency beside pixels computed by hand; broken files of
each kind; hypothesis over bytes, over cut and spoiled files, and over URLs.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from engine.pictures.decode import FORMATS, Limits, Refused, decode, from_url

LIMITS = Limits()
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (20, 30, 3), np.uint8)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def pixels(data: bytes, limits: Limits = LIMITS) -> np.ndarray:
    image = decode(data, limits)
    assert isinstance(image, Image.Image), image
    assert image.mode == "RGB"
    return np.asarray(image)


def why(data: bytes, limits: Limits = LIMITS) -> str:
    refused = decode(data, limits)
    assert isinstance(refused, Refused)
    assert refused.why and len(refused.why.splitlines()) == 1
    return refused.why


RGB = Image.fromarray(PIXELS)


def test_lossless_formats_give_the_pixels() -> None:
    for form, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        assert np.array_equal(pixels(encoded(RGB, form, **options)), PIXELS)


def test_jpeg_gives_what_pillow_gives() -> None:
    data = encoded(RGB, "JPEG", quality=95)
    assert np.array_equal(pixels(data), np.asarray(Image.open(BytesIO(data))))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    assert np.abs(pixels(data).astype(int) - [255, 0, 0]).max() <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_is_what_it_shows(mode: str) -> None:
    grey = np.where(PIXELS[..., 0] > 127, 255, 0).astype(np.uint8)
    picture = Image.fromarray(grey)
    if mode == "I;16":
        picture = Image.fromarray(grey.astype(np.uint16) * 257)
    elif mode == "PA":
        picture = picture.convert("P").convert("PA")
    else:
        picture = picture.convert(mode)
    form = "JPEG" if mode == "CMYK" else "PNG"
    data = encoded(picture.convert("RGBA") if mode == "PA" else picture, form)
    got = pixels(data).astype(int)
    assert got.shape == (20, 30, 3)
    # Hard black and white in a JPEG rings; everything else is exact.
    assert np.abs(got - grey[..., None]).mean() <= (12 if mode == "CMYK" else 0)


def test_sixteen_bits_of_grey_are_scaled_and_not_cut() -> None:
    ramp = np.linspace(0, 65_535, 512).astype(np.uint16).reshape(16, 32)
    assert np.array_equal(pixels(encoded(Image.fromarray(ramp)))[..., 0], ramp >> 8)


def test_transparency_is_over_white() -> None:
    alpha = np.zeros((20, 30), np.uint8)
    alpha[:, :10], alpha[:, 10:20] = 255, 128
    got = pixels(encoded(Image.fromarray(np.dstack([PIXELS, alpha])))).astype(int)
    assert np.array_equal(got[:, :10], PIXELS[:, :10])
    mixed = (PIXELS[:, 10:20].astype(int) * 128 + 255 * 127) / 255
    assert np.abs(got[:, 10:20] - mixed).max() <= 1
    assert (got[:, 20:] == 255).all()


def test_a_transparent_palette_entry_is_white() -> None:
    picture = Image.new("P", (8, 8), 0)
    picture.putpalette([255, 0, 0, 0, 255, 0])
    picture.paste(1, (0, 0, 4, 8))
    for form in ("PNG", "GIF"):
        got = pixels(encoded(picture, form, transparency=0))
        assert (got[:, :4] == [0, 255, 0]).all() and (got[:, 4:] == 255).all()


TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_turned_as_its_exif_says(orientation: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(RGB, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    assert np.array_equal(pixels(data), TURNS[orientation](PIXELS))


def test_a_broken_exif_block_loses_the_orientation_and_no_pixel() -> None:
    data = encoded(RGB, exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff" + b"\x07" * 40)
    assert np.array_equal(pixels(data), PIXELS)


# refusals


def png(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG whose header says what is asked for, and whose pixels are `body`."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + ends


@pytest.mark.parametrize(
    "width, height", [(20_000, 20_000), (2**31 - 1, 2**31 - 1), (9_000, 9_000)]
)
def test_a_bomb_is_refused_from_its_header(width: int, height: int) -> None:
    """Its pixels are missing: whoever decoded first would say that it is cut off."""
    assert "pixels" in why(png(width, height)) and "67,108,864" in why(png(width, height))


def test_the_cap_is_the_settings() -> None:
    assert "599" in why(encoded(RGB), Limits(decoded_pixels=599))
    assert pixels(encoded(RGB), Limits(decoded_pixels=600)).shape == (20, 30, 3)
    data = encoded(RGB)
    assert f"{len(data):,} bytes" in why(data, Limits(image_bytes=len(data) - 1))
    assert pixels(data, Limits(image_bytes=len(data))).shape == (20, 30, 3)


@pytest.mark.parametrize("size", [(201, 1), (1, 201), (3_000, 14)])
def test_too_long_and_thin(size: tuple[int, int]) -> None:
    assert "200 to 1" in why(encoded(Image.new("RGB", size)))


def test_long_and_thin_enough() -> None:
    assert pixels(encoded(Image.new("RGB", (200, 1)))).shape == (1, 200, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg' width='4' height='4'/>",
        encoded(RGB, "BMP"),
        encoded(RGB, "TIFF"),
        encoded(RGB, "PPM"),
        b"%PDF-1.7",
        b"image/png",
        b"\x00",
    ],
    ids=["svg", "bmp", "tiff", "ppm", "pdf", "text", "zero"],
)
def test_other_formats(data: bytes) -> None:
    assert why(data) == "the image is not PNG, JPEG, WebP or GIF"


def test_empty_and_of_no_size() -> None:
    assert "empty" in why(b"")
    assert why(png(0, 7))


@pytest.mark.parametrize("form", FORMATS)
def test_cut_off_files_are_refused(form: str) -> None:
    data = encoded(Image.fromarray(RANDOM.integers(0, 256, (90, 90, 3), np.uint8)), form)
    for part in (0.3, 0.6, 0.9):
        assert why(data[: int(len(data) * part)])


FILES = [encoded(RGB, form) for form in FORMATS]


@given(st.binary(max_size=200))
def test_any_bytes_give_pixels_or_one_line(data: bytes) -> None:
    got = decode(data, LIMITS)
    assert isinstance(got, Image.Image) or len(got.why.splitlines()) == 1


@settings(max_examples=300)
@given(st.sampled_from(FILES), st.data())
def test_any_spoiled_file_gives_pixels_or_one_line(file: bytes, data: st.DataObject) -> None:
    spoiled = bytearray(file)
    for _ in range(data.draw(st.integers(1, 6))):
        spoiled[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    got = decode(
        bytes(spoiled[: data.draw(st.integers(1, len(file)))]), Limits(decoded_pixels=10**5)
    )
    assert isinstance(got, Image.Image) or len(got.why.splitlines()) == 1


# URLs


def refused(url: str, limits: Limits = LIMITS) -> str:
    got = from_url(url, limits)
    assert isinstance(got, Refused) and len(got.why.splitlines()) == 1
    return got.why


@pytest.mark.parametrize(
    "head", ["data:image/png;base64,", "DATA:;base64,", "data:image/jpeg;name=a.jpg;BASE64,"]
)
def test_a_data_url_gives_its_bytes(head: str) -> None:
    data = encoded(RGB)
    assert from_url(head + base64.b64encode(data).decode(), LIMITS) == data


def test_line_breaks_in_base64_are_passed_over() -> None:
    text = base64.encodebytes(FILES[0]).decode()
    assert from_url(f" data:image/png;base64,{text}\n", LIMITS) == FILES[0]


@pytest.mark.parametrize(
    "url, word",
    [
        ("https://example.com/a.png", "not fetched"),
        ("http://127.0.0.1/a.png", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("/etc/passwd", "no data: URL"),
        ("", "no data: URL"),
        ("cid:1", "no data: URL"),
        ("data:image/png;base64", "comma"),
        ("data:image/png,abc", "not in base64"),
        ("data:image/png;base64,abc", "no valid base64"),
        ("data:image/png;base64,a$==", "no valid base64"),
        ("data:image/png;base64,äöüß", "no valid base64"),
    ],
)
def test_bad_urls_are_refused(url: str, word: str) -> None:
    assert word in refused(url)


def test_a_long_url_is_not_repeated_and_not_decoded() -> None:
    assert len(refused("x" * 10_000)) < 100
    assert "bytes" in refused("data:;base64," + "A" * 4_000, Limits(image_bytes=1_000))


@given(st.text(max_size=80))
def test_any_url_gives_bytes_or_one_line(url: str) -> None:
    for each in (url, "data:" + url, "data:image/png;base64," + url):
        got = from_url(each, LIMITS)
        assert isinstance(got, bytes) or len(got.why.splitlines()) == 1


@pytest.mark.parametrize("name", ["image_bytes", "decoded_pixels", "aspect"])
def test_a_limit_that_cannot_be_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})
