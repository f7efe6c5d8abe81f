"""Bytes to pixels: what a client sent as an image, or one line that says why it is none

The format is found in the content, never by a name or a media type. Nothing is fetched: an image
comes inside the request, as a data: URL. Sizes are checked from the header, before any pixel is
decoded, so that a few kilobytes that claim gigapixels cost nothing.
"""

from __future__ import annotations

import base64
import binascii
import warnings
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Of an animation the first frame counts."""
_SPOKEN = "PNG, JPEG, WebP or GIF"
_QUOTED = 40
"""Characters of a bad URL that are repeated."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What was sent is no image that can be read; `why` is one line for whoever sent it."""

    why: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What an image may have. ValueError names the setting that can't be."""

    image_bytes: int = 32 * 2**20
    """Bytes of the encoded file."""
    decoded_pixels: int = 64 * 2**20
    """Pixels of the picture as it is stored; decoding takes up to 14 bytes for each."""
    aspect: int = 200
    """Longer side to shorter; the family's preprocessing takes no more either."""

    def __post_init__(self) -> None:
        for name in ("image_bytes", "decoded_pixels", "aspect"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")


def from_url(url: str, limits: Limits) -> bytes | Refused:
    """The bytes inside a `data:` URL in base64. All other URLs are refused: nothing is fetched."""
    scheme, colon, rest = url.strip().partition(":")
    if not colon or scheme.lower() != "data":
        if colon and scheme.lower() in ("http", "https", "file", "ftp", "blob"):
            return Refused(f"an image at {_quoted(url)} is not fetched: send it as a data: URL")
        return Refused(f"{_quoted(url)} is no data: URL")
    head, comma, body = rest.partition(",")
    if not comma:
        return Refused("the data: URL has no comma before its data")
    if head.rpartition(";")[2].strip().lower() != "base64":
        return Refused("the data: URL is not in base64")
    if len(body) // 4 * 3 > limits.image_bytes + 3:
        return _too_many_bytes(len(body) // 4 * 3, limits)
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):  # ValueError: characters that are no ASCII
        return Refused("the data: URL holds no valid base64")


def decode(data: bytes, limits: Limits) -> Image.Image | Refused:
    """An RGB image as it is to be seen: turned as its EXIF says, transparency over white."""
    if not data:
        return Refused("the image is empty")
    if len(data) > limits.image_bytes:
        return _too_many_bytes(len(data), limits)
    # Pillow's warnings are about files that it reads all the same, or about a size checked here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _opened(data, limits)
        except UnidentifiedImageError:
            return Refused(f"the image is not {_SPOKEN}")
        except Image.DecompressionBombError:
            return Refused(f"the image has more than {limits.decoded_pixels:,} pixels")
        # Decoders of foreign bytes raise about anything: struct.error, IndexError, zlib.error.
        except Exception as error:
            return Refused(f"the image is broken or cut off: {_line(error)}")


def _opened(data: bytes, limits: Limits) -> Image.Image | Refused:
    with Image.open(BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        if width < 1 or height < 1:
            return Refused(f"the image is {width} x {height} pixels")
        if width * height > limits.decoded_pixels:
            size = f"{width:,} x {height:,} pixels"
            return Refused(f"the image is {size}, more than {limits.decoded_pixels:,} in all")
        if max(width, height) > limits.aspect * min(width, height):
            return Refused(f"the image is {width} x {height}, longer than {limits.aspect} to 1")
        image.load()
        _turn_upright(image)
        return _opaque(image)


def _turn_upright(image: Image.Image) -> None:
    # In place: a copy of a large picture for nothing would be its largest.
    try:
        ImageOps.exif_transpose(image, in_place=True)
    # The pixels are whole; a broken EXIF block only loses the orientation.
    except Exception as error:
        del error


def _opaque(image: Image.Image) -> Image.Image:
    """As RGB, over white where it is transparent."""
    if image.mode.startswith("I"):
        # 16 bits of grey: the converter would cut at 255 instead of scaling.
        grey = np.asarray(image) >> 8
        np.clip(grey, 0, 255, out=grey)
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    coloured = image if image.mode == "RGBA" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(coloured, mask=coloured.getchannel("A"))
    return white


def _too_many_bytes(size: int, limits: Limits) -> Refused:
    return Refused(f"the image has {size:,} bytes, more than {limits.image_bytes:,}")


def _quoted(url: str) -> str:
    """The begin of a URL, printable, on one line."""
    short = url.strip()[:_QUOTED]
    return ascii(short if len(url.strip()) <= _QUOTED else short + "...")


def _line(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0].strip()
    return text or type(error).__name__
