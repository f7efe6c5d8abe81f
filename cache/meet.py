"""How far a prompt goes on with a sequence's rows, token by token or aligned."""

from __future__ import annotations

from collections.abc import Callable

from cache.account import Account
from cache.types import Ask, Met, common_prefix

Meeting = Callable[[Account, Ask], Met]
"""Says how far an ask goes on with an account's rows. Changes nothing."""


def exactly(account: Account, ask: Ask) -> Met:
    """Token by token: the longest common prefix."""
    shared = common_prefix(account.ids, ask.ids)
    return Met(shared, shared, ask.ids)
