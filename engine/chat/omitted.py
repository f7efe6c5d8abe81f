"""Images left out: a fixed text in place of a conversation's oldest ones over the cap"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.chat.messages import Message, Piece, Say, Show
from engine.pictures.leave_out import Cap, left_out

LEFT_OUT = "[An earlier image was left out.]"
"""What stands in an image's place. The same for all of them, so that it never changes a head."""


def within(messages: Sequence[Message], cap: Cap) -> tuple[Message, ...]:
    """The messages with no more images than the cap allows: the oldest are left out.

    Which ones moves only once in half the cap (engine/pictures/leave_out.py), so that from turn to
    turn a conversation's prompts begin alike.
    """
    left = left_out([image.picture.rows for m in messages for image in m.images], cap)
    out: list[Message] = []
    for message in messages:
        if not left:
            out.append(message)
            continue
        pieces: list[Piece] = []
        for piece in message.pieces:
            gone = isinstance(piece, Show) and left > 0
            pieces.append(Say("content", LEFT_OUT) if gone else piece)
            left -= gone
        out.append(replace(message, pieces=tuple(pieces)))
    return tuple(out)
