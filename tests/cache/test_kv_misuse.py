"""What a KV cache refuses, tentative.py among it, and that nothing has changed then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_laws import LIMIT, append, cache_of, rows, same, view

from suffice.cache import alike
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache
from suffice.errors import InputError


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda c: c.reserve(LIMIT), "83 tokens exceed the context length of 70"),
        (lambda c: c.commit([1, 0]), "path [1, 0] must be ascending tentative rows (there are 2)"),
        (lambda c: c.commit([0, 0]), "path [0, 0] must be ascending tentative rows (there are 2)"),
        (lambda c: c.commit([2]), "path [2] must be ascending tentative rows (there are 2)"),
        (lambda c: c.commit([1]), "path [1]: tentative row 1 does not continue the row before it"),
        (lambda c: c.commit([0.5]), "path [0.5] must be a list of whole numbers"),
        (lambda c: c.commit(0), "path 0 must be a list of whole numbers"),
        (lambda c: c.draft([True]), "parents [True] must be a list of whole numbers"),
        (
            lambda c: c.append_tentative(*rows(3, 2), [-1, 0]),
            "k of shape [2, 2, 3, 16] must be [2, 2, 2, 16] for this cache and 2 parents",
        ),
        (
            lambda c: c.append_tentative(*[torch.zeros(3, 2, 1, 16)] * 2, [-1]),
            "k of shape [3, 2, 1, 16] must be [2, 2, 1, 16] for this cache and 1 parents",
        ),
        (
            lambda c: c.append_tentative(rows(1, 2)[0], torch.zeros(1), [-1]),
            "v of shape [1] must be [2, 2, 1, 16] for this cache and 1 parents",
        ),
        (lambda c: c.advance(1), "2 tentative rows: commit or roll back first"),
        (lambda c: c.append(0, *[rows(1, 3)[0][0]] * 2), "2 tentative rows: commit or roll back"),
        (lambda c: c.draft([-1] * 31, 99), "31 drafts do not fit: 3 rows are spare"),
        (lambda c: c.draft([2]), "draft 0: parent 2 must be a tentative row before it"),
        (lambda c: c.truncate(14), "cannot truncate to 14 rows: 11 are committed"),
        (lambda c: c.truncate(-1), "cannot truncate to -1 rows: 11 are committed"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    misuse: Callable[[KVCache], object], message: str
) -> None:
    cache, plain = (cache_of(KVCache, "step:16") for _ in range(2))
    for each in (cache, plain):
        append(each, *rows(11, 1))
        each.append_tentative(*rows(2, 2), [-1, 0])
    with pytest.raises(InputError) as error:
        misuse(cache)
    assert str(error.value).startswith(message)
    same(cache, plain)
    for each in (cache, plain):
        each.commit([0, 1])
    same(cache, plain)


@pytest.mark.parametrize("path", [[0, 1, 2], [0, 3], [1], [0, 2]])
def test_a_path_follows_parents(path: list[int]) -> None:
    cache = cache_of(KVCache, "step:16")
    append(cache, *rows(3, 1))
    cache.append_tentative(*rows(4, 2), [-1, 0, -1, 1])
    with pytest.raises(InputError, match=r"does not continue the row before it$"):
        cache.commit(path)
    assert (cache.length, cache.tentative) == (3, 4)
    cache.commit([0, 1, 3])
    assert torch.equal(view(cache)[0][:, :, 3:], rows(4, 2)[0][:, :, [0, 1, 3]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_dtype": "int4"}, "unknown KV cache dtype 'int4'. Did you mean 'int8'?"),
        ({"value_dtype": "fp16"}, "unknown KV cache dtype 'fp16'."),
        ({"rows": alike(1, 1, 24)}, "head_size=24 must be a multiple of 16 up to 512"),
    ],
)
def test_bad_shapes_and_types_are_refused(options: dict[str, object], message: str) -> None:
    given_options = {"rows": alike(1, 1, 16), "growth": Upfront(), "limit": 4}
    with pytest.raises(InputError) as error:
        KVCache(**(given_options | options))  # type: ignore[arg-type]
    assert str(error.value).startswith(message)
