"""What tests of images share: photos made by code, as the URLs and parts that clients send."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image


def photo(seed: int, width: int = 96, height: int = 96) -> Image.Image:
    """A photo of this seed's own noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def data_url(image: Image.Image, format: str = "PNG", **how: Any) -> str:
    """A data: URL with the image in this format."""
    out = BytesIO()
    image.save(out, format, **how)
    return f"data:image/{format.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def image_part(url: str) -> dict[str, Any]:
    """A message's part that shows it."""
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> dict[str, Any]:
    """A message's part that says it."""
    return {"type": "text", "text": text}


def attached(question: str, *photos: tuple[str, str]) -> dict[str, Any]:
    """A user's message as Open WebUI sends one with files: (name, data: URL) each."""
    files = "\n".join(
        f'<file type="file" id="id-of-{name}" url="id-of-{name}" '
        f'content_type="image/png" name="{name}"/>'
        for name, _ in photos
    )
    head = text_part(f"<attached_files>\n{files}\n</attached_files>\n\n")
    shown = [image_part(url) for _, url in photos]
    return {"role": "user", "content": [head, text_part(question), *shown]}
