"""The delta rule's chunked form for wide heads: few passes over memory, products by key head

What engine/layers/delta_rule.py writes down, ordered for many channels. With a key head's queries
above its keys in one matrix, and the states of the value heads it serves side by side in another,

    [q; k] k^T        gives the scores and the systems of all its value heads,
    [q; k] S          reads their states,
    S + k^T (...)     lets them absorb an inner chunk,

each as one large product, and no key is repeated. The system of a head's u, divided by beta,

    (1/beta + M) u = v - exp(c) k S,    M_ij = k_i.k_j exp(c_i - c_j) below the diagonal,

is solved by the inverse of its left side, which is made from the diagonal out, for blocks of 1, 2,
4 ... tokens, those of all inner chunks in one batch:

    [A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1 C^-1]

That is forward substitution in another order; nothing is divided, since a block of one token is
beta itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.layers.delta_rule import share


@dataclass(frozen=True, slots=True)
class Chunks:
    """m inner chunks of C tokens, float32, contiguous where nothing else is said; a key head has r
    consecutive value heads."""

    pair: torch.Tensor
    """Queries and keys of their final length, [m, key heads, 2, C, key_dim]."""
    values: torch.Tensor
    """[m * C, value heads, value_dim], in any dtype and with rows anywhere."""
    g: torch.Tensor
    """[m * C, value heads]."""
    beta: torch.Tensor
    """[m * C, value heads]."""


def sweep(chunks: Chunks, state: torch.Tensor, out: torch.Tensor) -> None:
    """o of all tokens into `out` [m * C, value heads, value_dim], contiguous, in any dtype.

    `state` [value heads, key_dim, value_dim] absorbs them, in place.
    """
    m, keys, _, size, _ = chunks.pair.shape
    heads, key_dim, value_dim = state.shape
    shape = (keys, heads // keys, size, value_dim)
    stacked = chunks.pair.view(m, keys, 2 * size, key_dim)
    decay = chunks.g.view(m, size, *shape[:2]).permute(0, 2, 3, 1).cumsum(-1)
    inverse, scores = _solved(stacked, decay, chunks.beta)
    last = decay[..., -1:]
    grown, shrink = share(decay.clone()).unsqueeze(4), share(last.clone()).unsqueeze(2)
    lost, left = grown.neg(), share(last - decay).transpose(2, 3).unsqueeze(4)
    values, outputs = (
        x.view(m, size, *shape[:2], value_dim).permute(0, 2, 3, 1, 4) for x in (chunks.values, out)
    )
    states = state.view(*shape[:2], key_dim, value_dim)
    beside = states.transpose(1, 2).contiguous()
    flat = beside.view(keys, key_dim, -1)
    need, given = state.new_empty(shape), state.new_empty(shape)
    taken = state.new_empty(keys, size, shape[1], value_dim)
    # The same, as products take them.
    needed, told = need.view(heads, size, value_dim), given.view(heads, size, value_dim)
    beyond = taken.view(keys, size, -1)
    steps = (stacked, values, outputs, inverse, scores, grown, lost, left, shrink)
    for rows, v, o, solved, score, grow, lose, leave, keep in zip(
        *(part.unbind() for part in steps), strict=True
    ):
        read = torch.bmm(rows, flat).view(keys, 2, size, shape[1], value_dim)
        asked, known = read.transpose(2, 3).unbind(1)
        need.copy_(v).addcmul_(known, lose)
        u = torch.bmm(solved, needed)
        torch.mul(asked, grow, out=given)
        told.baddbmm_(score, u)
        o.copy_(given)
        torch.mul(u.view(shape).transpose(1, 2), leave, out=taken)
        beside.mul_(keep)
        flat.baddbmm_(rows[:, size:].transpose(1, 2), beyond)
    states.copy_(beside.transpose(1, 2))


def _solved(
    stacked: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What hangs on no state, both [m, value heads, C, C].

    The inverses, and the scores q_i.k_j exp(c_i - c_j) on and below the diagonal. `stacked` [m, key
    heads, 2 C, key_dim], `decay`, which is c, [m, key heads, r, C].
    """
    m, keys, served, size = decay.shape
    rows = stacked.flatten(0, 1)
    products = torch.bmm(rows, rows[:, size:].transpose(1, 2)).view(m, keys, 2, 1, size, size)
    asked, system = products.unbind(2)
    pairs = share(decay.unsqueeze(4) - decay.unsqueeze(3))
    blocks = _Blocks(m * keys * served, size, decay)
    torch.mul(pairs, system, out=blocks.below.view_as(pairs))
    inverse = blocks.inverse(beta.view(m, size, -1).transpose(1, 2).reshape(-1, size))
    shape = (m, keys * served, size, size)
    return inverse.view(shape), pairs.mul_(asked).tril_().view(shape)


class _Blocks:
    """A batch of matrices whose diagonal blocks, of all of them, stand at even distances.

    A side is rounded up to a power of two, and one line more than it has are stored: then the next
    matrix begins where this one's diagonal would go on.
    """

    def __init__(self, count: int, size: int, like: torch.Tensor) -> None:
        """`count` matrices [size, size] in the dtype of `like`."""
        self._count, self._size = count, size
        self._side = 1 << (size - 1).bit_length()
        make = like.new_empty if size == self._side else like.new_zeros
        self._below = make(count, self._side + 1, self._side)
        self._inverse = like.new_zeros(count, self._side + 1, self._side)
        self.below = self._below[:, :size, :size]
        """[count, size, size]: to be filled; what is below the diagonal counts."""

    def inverse(self, diagonal: torch.Tensor) -> torch.Tensor:
        """Of the matrices with 1 / `diagonal` [count, size] there; zero above the diagonal."""
        inverse, side = self._inverse, self._side
        inverse.flatten(1)[:, :: side + 1][:, : self._size] = diagonal
        step = 1
        while step < self._size:
            first, second, corner = (
                self._part(inverse, step, *at) for at in ((0, 0), (step, step), (step, 0))
            )
            made = torch.bmm(second, torch.bmm(self._part(self._below, step, step, 0), first))
            torch.neg(made, out=corner)
            step *= 2
        return inverse[:, : self._size, : self._size]

    def _part(self, matrices: torch.Tensor, step: int, row: int, column: int) -> torch.Tensor:
        """[blocks, step, step] of every second diagonal block, from `row` and `column` in it."""
        side = self._side
        blocks = self._count * side // (2 * step)
        strides = (2 * step * (side + 1), side, 1)
        return matrices.as_strided((blocks, step, step), strides, row * side + column)
