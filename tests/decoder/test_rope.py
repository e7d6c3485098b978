"""Tests of rope.py, rotation.py and rope_kinds.py: rotations as transformers computes them."""

from __future__ import annotations

import platform
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from suffice.decoder.rope import frequencies, rope_table
from suffice.decoder.rotation import Rope
from suffice.errors import InputError

SIZES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
THETAS = (1000.0, 1e4, 1e5, 130000.0, 5e5, 1e6, 8e6)
LENGTHS = (1, 30, 64, 65, 100, 2049, 5000, 9000, 70000)
# each parameter's values; half of the cases leave an optional one out
REQUIRED: dict[str, dict[str, tuple[Any, ...]]] = {
    "linear": {"factor": (1.0, 1.5, 2, 8.0, 40)},
    "dynamic": {"factor": (1.0, 1.5, 2, 8.0, 40)},
    "yarn": {
        "factor": (1.0, 1.5, 2, 8.0, 40),
        "original_max_position_embeddings": (32, 64, 2048, 4096, 8192),
    },
    "longrope": {
        "factor": (1.0, 1.5, 2, 8.0, 32),
        "original_max_position_embeddings": (32, 64, 2048, 4096, 8192),
    },
    "llama3": {
        "factor": (1.0, 2, 4.0, 8, 16.0),
        "original_max_position_embeddings": (32, 64, 2048, 4096, 8192),
        "low_freq_factor": (0.5, 1),
        "high_freq_factor": (4.0, 8),
    },
    "proportional": {},
}
OPTIONAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "yarn": {
        "attention_factor": (1.0, 1.19, 2),
        "beta_fast": (16.0, 32, 40),
        "beta_slow": (0.5, 1, 2.0),
        "mscale": (1.0, 0.707),
        "mscale_all_dim": (1.0, 0.707, 0.5),
        "truncate": (True, False),
    },
    "longrope": {"attention_factor": (1.0, 1.19, 2)},
    "proportional": {"factor": (1.0, 1.5, 8)},
}


def drawn(kind: str, size: int, draw: random.Random) -> dict[str, Any]:
    """Return random parameters of a kind of rotation of heads of `size`."""
    found = {name: draw.choice(values) for name, values in REQUIRED[kind].items()}
    for name, values in OPTIONAL.get(kind, {}).items():
        if draw.random() < 0.5:
            found[name] = draw.choice(values)
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            found[name] = [draw.uniform(0.5, 60) for _ in range(size // 2)]
    return found


def theirs(
    kind: str, theta: float, size: int, trained: int, given: dict[str, Any], length: Any
) -> tuple[Any, float]:
    """Return the frequencies and the factor of transformers, for a text of `length` tokens."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = SimpleNamespace(
        standardize_rope_params=lambda: None,
        rope_parameters={"rope_theta": theta, **given},
        head_dim=size,
        hidden_size=size,
        num_attention_heads=1,
        max_position_embeddings=trained,
    )
    turns, factor = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
    return turns.numpy(), float(factor)


def worst(kind: str, change: dict[str, Any] | None = None) -> float:
    """Return the largest relative difference over 300 random rotations; `change` breaks ours."""
    draw, found = random.Random(kind), 0.0
    for _ in range(300):
        size, theta = draw.choice(SIZES), draw.choice(THETAS)
        trained = draw.choice((64, 128, 2048, 8192, 32768))
        given = drawn(kind, size, draw)
        length = draw.choice((None, *LENGTHS)) if kind in ("dynamic", "longrope") else None
        part = draw.choice((0.25, 0.5, 1.0)) if kind == "proportional" else 1.0
        own = tuple((given | (change or {})).items())
        rope = Rope(kind, theta, own, partial=part, text=length)
        if kind == "dynamic" and length is not None:
            length = torch.tensor(length)
        ours, factor = frequencies(rope, size, trained)
        given = given | ({"partial_rotary_factor": part} if part < 1 else {})
        expected, scale = theirs(kind, theta, size, trained, given, length)
        still = expected == 0
        assert not ours[still].any()
        ours, expected = ours[~still], expected[~still]
        assert ours.dtype == np.float32
        error = np.abs(ours.reshape(-1).astype(np.float64) / expected - 1).max()
        found = max(found, float(error), abs(factor / scale - 1))
    return found


@pytest.mark.parametrize("kind", REQUIRED)
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    assert worst(kind) < 1e-6


@pytest.mark.parametrize(("size", "factor"), [(64, 32.0), (128, 8.0)])
def test_the_published_llama3_rotations(size: int, factor: float) -> None:
    given = {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }
    ours, _ = frequencies(Rope("llama3", 5e5, tuple(given.items())), size, 131072)
    expected, _ = theirs("llama3", 5e5, size, 131072, given, None)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("linear", {"factor": 8.00001}),
        ("dynamic", {"factor": 2.001}),
        ("yarn", {"beta_fast": 20}),
        ("yarn", {"truncate": True}),
        ("yarn", {"attention_factor": 1.0}),
        ("longrope", {"factor": 4.0}),
        ("longrope", {"attention_factor": 1.0}),
        ("llama3", {"high_freq_factor": 9.0}),
        ("proportional", {"factor": 1.0}),
    ],
)
def test_another_parameter_would_be_noticed(kind: str, change: dict[str, Any]) -> None:
    assert worst(kind, change) > 1e-6


def test_every_kind_is_compared() -> None:
    from suffice.decoder.rope_kinds import ROPE_KINDS

    assert set(REQUIRED) == set(ROPE_KINDS) - {"default"}  # in the tests of tables
    for kind, (required, optional) in ROPE_KINDS.items():
        lists = {"short_factor", "long_factor"} if kind == "longrope" else set()
        assert set(REQUIRED.get(kind, {})) == required - lists
        assert set(OPTIONAL.get(kind, {})) == optional


def torch_table(theta: float, size: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines as the models of transformers compute them."""
    turns = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(rows)[:, None].float() * turns
    return angles.cos(), angles.sin()


def exact_table(theta: float, size: int, rows: int) -> tuple[Any, Any]:
    turns = 1.0 / theta ** (np.arange(0, size, 2) / size)
    angles = np.arange(rows)[:, None] * turns
    return np.cos(angles), np.sin(angles)


@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_tables_are_as_exact_as_those_of_pytorch(theta: float, size: int) -> None:
    rows = 2048
    ours = rope_table(Rope(theta=theta), size, rows, rows)
    same, exact = torch_table(theta, size, rows), exact_table(theta, size, rows)
    for mine, torchs, true in zip(ours, same, exact, strict=True):
        assert mine.dtype == np.float32
        assert mine.shape == (rows, size // 2)
        error, their_error = np.abs(mine - true), np.abs(torchs.numpy() - true)
        assert error.max() <= 2 * their_error.max()
        assert error.mean() <= 1.01 * their_error.mean()


def test_entries_are_within_six_tenths_of_a_last_place() -> None:
    turns, _ = frequencies(Rope(theta=1e5), 64, 40000)
    angles = (np.arange(40000, dtype=np.float32)[:, None] * turns).astype(np.longdouble)
    tables = rope_table(Rope(theta=1e5), 64, 40000, 40000)
    assert angles.max() > 3e4  # beyond 10,000 radians too
    for ours, exact in zip(tables, (np.cos(angles), np.sin(angles)), strict=True):
        assert (np.abs(ours - exact) <= 0.61 * np.spacing(np.abs(ours))).all()


def other_bits(theta: float, size: int, rows: int, change: float = 1.0) -> int:
    """Return how many entries have other bits than PyTorch's; `change` breaks its base."""
    ours = rope_table(Rope(theta=theta), size, rows, rows)
    same = torch_table(theta * change, size, rows)
    return sum(int((a != b.numpy()).sum()) for a, b in zip(ours, same, strict=True))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="PyTorch's bits on x86-64")
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5])
def test_tables_have_the_bits_of_pytorch(theta: float, size: int) -> None:
    assert other_bits(theta, size, 8192) == 0
    assert other_bits(theta, size, 8192, change=1.00001) > 1000


@pytest.mark.parametrize("kind", ["default", *REQUIRED])
def test_a_table_does_not_depend_on_its_first_row(kind: str) -> None:
    draw = random.Random(1)
    given = drawn(kind, 64, draw) if kind in REQUIRED else {}
    rope = Rope(kind, 1e4, tuple(given.items()))
    whole = rope_table(rope, 64, 100, 300)
    for first, rows in ((0, 1), (7, 90), (99, 1), (100, 1), (120, 180), (299, 1)):
        part = rope_table(rope, 64, 100, rows, first)
        for ours, all_rows in zip(part, whole, strict=True):
            assert np.array_equal(ours, all_rows[first : first + rows])


def test_a_longrope_has_other_divisors_for_long_texts() -> None:
    lists = (("short_factor", (1.0,) * 8), ("long_factor", (2.0,) * 8))
    length = (("factor", 4.0), ("original_max_position_embeddings", 64))
    rope = Rope("longrope", 1e4, (*lists, *length))
    plain = rope_table(Rope(), 16, 256, 100)[0]
    half = rope_table(Rope("linear", 1e4, (("factor", 2.0),)), 16, 256, 100)[0]
    factor = np.float32(np.sqrt(1 + np.log(4) / np.log(64)))
    for context, expected in ((64, plain), (65, half)):
        fitted = rope.fitted(256, context)
        cos, _ = rope_table(fitted, 16, 256, 100)
        np.testing.assert_allclose(cos, expected * factor, rtol=1e-6, atol=1e-6)
        assert fitted.fitted(256, 64) == rope, "it may be fitted again"
    assert rope.reached(256) == (256, 256) and rope.unfitted(256) == 64
    assert rope.unfitted(32) == 32


def test_a_vast_base_does_not_rotate() -> None:
    rope = Rope("dynamic", 1e38, (("factor", 4.0),)).fitted(8, 100)
    cos, sin = rope_table(rope, 64, 8, 100)
    assert np.isfinite(cos).all()
    assert np.isfinite(sin).all()
    assert (sin[99, 1:] < 1e-1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mrope",), "unknown rope_type 'mrope'. Did you mean 'longrope'? Known: default, "),
        (([],), "unknown rope_type '[]'. Known: default, dynamic, "),
        (("yarn",), "rope_type 'yarn' needs the parameter 'factor'"),
        (("linear", 1e4, (("facter", 2.0),)), "unknown parameter of rope_type 'linear' 'facter'."),
        (("linear", 1e4, (("factor", 1e-9),)), "config field 'factor' = 1e-09 must be a finite"),
        (("default", 1.0), "config field 'rope_theta' = 1.0 must be a finite number above 1"),
        (
            (
                "yarn",
                1e4,
                (("factor", 2.0), ("original_max_position_embeddings", 8), ("beta_slow", 40)),
            ),
            "config field 'rope_parameters.beta_fast' = 32.0 must be a finite number above 40",
        ),
    ],
)
def test_impossible_rotations(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Rope(*arguments)
    assert str(caught.value).startswith(message)


def test_lists_of_a_file_are_the_same_rotation() -> None:
    lists = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    given = {"factor": 2.0, "original_max_position_embeddings": 64}
    rope = Rope("longrope", 1e4, tuple((lists | given).items()))
    tuples = {name: tuple(value) for name, value in lists.items()}
    assert rope == Rope("longrope", 1e4, tuple((given | tuples).items()))
    assert hash(rope)


def test_a_dynamic_rotation_is_that_of_the_longest_text() -> None:
    rope, trained = Rope("dynamic", 1e4, (("factor", 4.0),)), 32
    assert rope.fitted(trained, 32) == rope
    fitted = rope.fitted(trained, 50)
    cos, _ = rope_table(fitted, 16, trained, 50)
    base = 1e4 * (4 * 50 / 32 - 3) ** (16 / 14)
    expected = np.cos(31 * base ** (-np.arange(0, 16, 2) / 16))
    np.testing.assert_allclose(cos[31], expected, atol=1e-5)
