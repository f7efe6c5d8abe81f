"""How far a prompt goes on with a sequence's rows, token by token or aligned."""

from __future__ import annotations

from collections.abc import Callable

from cache.account import Account
from cache.types import Ask, Met, common_prefix

Meeting = Callable[[Account, Ask], Met]
"""Says how far an ask goes on with an account's rows. Changes nothing."""


class Switch:
    """A meeting that may be turned off while it is used: then tokens must be equal.

    What an account remembers of copies that met it is used by the meeting alone, and holds.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.on = True

    def __call__(self, account: Account, ask: Ask) -> Met:
        """How far the ask goes on with the account's rows."""
        return self._meeting(account, ask) if self.on else exactly(account, ask)


def exactly(account: Account, ask: Ask) -> Met:
    """Token by token: the longest common prefix."""
    shared = common_prefix(account.ids, ask.ids)
    return Met(shared, shared, ask.ids)
