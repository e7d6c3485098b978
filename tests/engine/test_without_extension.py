"""Runs are described, and techniques' references computed, without the compiled extension."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
sys.modules["suffice._native"] = None
"""
DESCRIBE = """
from suffice.attention import ATTENTIONS
from suffice.engine.config import Config
from suffice.policy import POLICIES
from suffice.quant import QUANTS
for name in ATTENTIONS.names():
    config = Config.create("no-model", attention=name)
    print(config.attention.rule() is None, len(config.rules(2, 3)))
for name in POLICIES.names():
    Config.create("no-model", policy=name)
for name in {*QUANTS.names()} - {"kllm"} | {"kllm:act_bits=16"}:  # codes of inputs need a text
    Config.create("no-model", quantization=name)
"""
REFERENCES = """
sys.modules["torch"] = None
import numpy as np
from suffice.attention import ATTENTIONS
random = np.random.default_rng(0)
q, k, v = (random.standard_normal(shape) for shape in ((4, 1, 64), *2 * [(2, 200, 64)]))
settings = ["aet:keys=0.5", "art:change=1,angle=1,patience=1", "certified:eps=0.5", "tiers"]
settings += ["skip_softmax:factor=199"]
for setting in settings:
    found = ATTENTIONS.build(setting).reference(q, k, v, scale=0.125)
    finite, skips = bool(np.isfinite(found.output).all()), not bool(found.values.all())
    print(tuple(found.output.shape), finite, skips)
"""
WEIGHTS = """
import numpy as np
from suffice.quant import QUANTS
from suffice.quant.none import NoQuant
weight = np.random.default_rng(0).standard_normal((40, 64), np.float32)
for quant in (NoQuant("float32"), *map(QUANTS.build, ("int8", "kmeans", "rtn"))):
    error = np.linalg.norm(quant.pack(weight).unpack() - weight)
    print(bool(error / np.linalg.norm(weight) < 0.15))
"""


def printed(code: str) -> list[str]:
    """Return the lines that a process without the extension prints."""
    run = [sys.executable, "-c", BLOCKED + code]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_config_needs_no_extension() -> None:
    assert printed(DESCRIBE) == [*3 * ["False 2"], "True 2", *2 * ["False 2"]]


def test_references_need_neither_the_extension_nor_pytorch() -> None:
    assert printed(REFERENCES) == ["(4, 1, 64) True True"] * 5


def test_weights_need_no_extension() -> None:
    assert printed(WEIGHTS) == ["True"] * 4


def test_the_extension_is_blocked() -> None:
    code = "try:\n    import suffice.native\nexcept ImportError:\n    print('blocked')"
    assert printed(code) == ["blocked"]
