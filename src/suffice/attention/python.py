"""Attention techniques without native code: the engine runs their references.

A technique of your own derives from `PythonTechnique` and has `reference` and `exact_limit`; see
docs/techniques/outside.md.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from suffice.attention.technique import Technique
from suffice.attention.traversal import Attended
from suffice.errors import InputError
from suffice.outside import reported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suffice.attention import Attention
    from suffice.attention.levels import Levels

__all__ = ["Attended", "PythonTechnique", "attend_to", "check_limit", "scores_of", "seen"]

_KINDS = {"f": "floats", "b": "bool", "iu": "integers"}  # of NumPy's kinds of types
_CLOSE = 1e-4  # relative error of outputs that count as equal: two orders of float32 sums


class PythonTechnique(Technique):
    """A technique whose reference the engine runs, token by token; see `Attention`.

    `needs_exact_softmax = False` lets it run with coded softmaxes, whose `levels` its reference
    must use. `stateless = False` gives it `states`, which `new_state` makes.
    """

    needs_exact_softmax: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def exact_limit(cls) -> Attention | None:
        """Return a setting that must equal `exact`; None if there is none."""

    @abstractmethod
    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
        levels: Sequence[Levels] | None = None,
    ) -> Attended:
        """Attend; see `Attention.reference` for the shapes. In the engine T is 1."""

    def new_state(self) -> Any:
        """Return the state that a key/value head keeps from token to token; None: none."""
        return None

    def rule(self) -> None:
        """Return nothing: there is no native code."""
        return None


def seen(q: np.ndarray, k: np.ndarray, visible: np.ndarray | None) -> np.ndarray:
    """Return which rows each token may attend to, bool [T, S]: `visible`, or all."""
    return np.ones((q.shape[1], k.shape[1]), bool) if visible is None else visible


def scores_of(q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    """Return the score of each key for each query, [H, T, S]."""
    # Query heads of a group share keys: their rows are those of one product.
    products = (scale * q).reshape(len(k), -1, q.shape[-1]) @ k.swapaxes(1, 2)
    scores: np.ndarray = products.reshape(*q.shape[:2], -1)
    return scores


def attend_to(
    chosen: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    keys: np.ndarray | None = None,
    sketch_bytes: np.ndarray | None = None,
) -> Attended:
    """Return exact attention to the rows `chosen`, bool [T, G, S], as if there were no others.

    `keys`: the rows whose keys were read, if choosing took more than the chosen ones; their values
    are not read. `sketch_bytes` int [T, G]: what else was read to choose.

    Raises:
        InputError: `chosen` has another shape, or has no row for a token and a key/value head.
    """
    shape = q.shape[1], *k.shape[:2]
    if chosen.shape != shape:
        raise InputError(
            f"attend_to: chosen has the shape {chosen.shape}: must be {shape}, [tokens, key/value "
            "heads, rows]"
        )
    if not (any_row := chosen.any(-1)).all():
        t, g = (int(each) for each in np.argwhere(~any_row)[0])
        raise InputError(f"attend_to: no row is chosen for token {t} and key/value head {g}")
    output = np.empty_like(q)
    group = len(q) // len(k)
    for t, g in np.ndindex(chosen.shape[:2]):
        own, rows = slice(g * group, (g + 1) * group), np.flatnonzero(chosen[t, g])
        scores = scale * q[own, t] @ k[g, rows].T
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        output[own, t] = weights @ v[g, rows] / weights.sum(-1, keepdims=True)
    read = chosen if keys is None else keys | chosen
    return Attended(output, read, chosen, sketch_bytes=sketch_bytes)


def check_attended(
    owner: str, found: Any, q: np.ndarray, k: np.ndarray, visible: np.ndarray | None
) -> Attended:
    """Return what a reference gave, if it is attention as the engine takes it.

    Raises:
        InputError: It is something else, reads what is hidden, or counts what cannot be.
    """
    if not isinstance(found, Attended):
        raise InputError(f"{owner} returns {type(found).__name__}: must be Attended")
    rows = (q.shape[1], *k.shape[:2])
    wanted = [("output", "f", q.shape), ("keys", "b", rows), ("values", "b", rows)]
    if found.sketch_bytes is not None:
        wanted.append(("sketch_bytes", "iu", rows[:2]))
    for name, kinds, shape in wanted:
        given: Any = getattr(found, name)
        if not isinstance(given, np.ndarray):
            raise InputError(f"{owner} returns {name} as {type(given).__name__}: must be an array")
        if given.shape != shape:
            raise InputError(f"{owner} returns {name} of shape {given.shape}: must be {shape}")
        if given.dtype.kind not in kinds:
            raise InputError(f"{owner} returns {name} as {given.dtype}: must be {_KINDS[kinds]}")
    if not np.isfinite(found.output).all():
        raise InputError(f"{owner} returns an output that is not finite")
    if found.sketch_bytes is not None and (found.sketch_bytes < 0).any():
        raise InputError(f"{owner} returns sketch_bytes below 0")
    if visible is not None and ((found.keys | found.values) & ~visible[:, None]).any():
        raise InputError(f"{owner} reads rows that `visible` hides: leave them out")
    return found


def check_limit(attention: Attention, name: str) -> None:
    """Require that a technique's exact setting equals exact attention on a small example.

    Raises:
        InputError: It does not, or it fails.
    """
    from suffice.attention.exact import Exact

    limit = type(attention).exact_limit()
    if limit is None:
        return
    random = np.random.default_rng(0)
    q, k, v = (
        random.standard_normal((heads, rows, 16)) for heads, rows in ((4, 1), (2, 83), (2, 83))
    )
    visible = np.arange(83)[None] != 7
    for given in (q, k, v, visible):
        given.flags.writeable = False  # as the engine's are
    for sees in (None, visible):
        with reported(f"attention '{name}' fails where its exact_limit() is checked"):
            found = limit.reference(q, k, v, scale=0.25, visible=sees)
        check_attended(f"attention '{name}': reference", found, q, k, sees)
        exact = Exact().reference(q, k, v, scale=0.25, visible=sees)
        error = float(np.linalg.norm(found.output - exact.output) / np.linalg.norm(exact.output))
        if not error <= _CLOSE:
            raise InputError(
                f"attention '{name}': its exact_limit() is off by {error:.2g} of exact attention's "
                f"output{' where some rows are hidden' if sees is visible else ''}: must equal it"
            )
