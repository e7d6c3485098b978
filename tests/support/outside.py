"""Techniques from outside of the tree: the example as a package in a folder, and broken ones."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "outside_technique"
# As a user could write them; each module is the source of a file.
MODULES = {
    "copies": '''
"""Techniques that are built in, and run by their references."""
from dataclasses import dataclass

from suffice.attention.aet import AET
from suffice.attention.exact import Exact


@dataclass(frozen=True)
class Whole(Exact):
    """Exact attention."""


@dataclass(frozen=True)
class Early(AET):
    """Early termination, with its state."""
''',
    "broken": '''
"""Techniques that cannot be used."""
from dataclasses import dataclass, replace

import numpy as np

from suffice.attention.python import Attended, PythonTechnique, attend_to, seen


class NoDataclass(PythonTechnique): ...


@dataclass(frozen=True)
class Bare(PythonTechnique):
    """Lacks what it needs."""


@dataclass(frozen=True)
class Newest(PythonTechnique):
    """Reads the newest row, and says that it is exact."""

    rows: int

    def __post_init__(self):
        if self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1")

    @classmethod
    def exact_limit(cls):
        return cls(1)

    def reference(self, q, k, v, *, scale, visible=None):
        sees = seen(q, k, visible)[:, None].repeat(len(k), 1)
        sees[:, :, : -self.rows] = False
        return attend_to(sees, q, k, v, scale=scale)


@dataclass(frozen=True)
class Unlimited(Newest):
    @classmethod
    def exact_limit(cls):
        return None


@dataclass(frozen=True)
class Fails(Unlimited):
    rows: int = 1

    def reference(self, q, k, v, *, scale, visible=None):
        k[0, 0] = 0


@dataclass(frozen=True)
class FailsAtOnce(Fails):
    @classmethod
    def exact_limit(cls):
        return cls()


@dataclass(frozen=True)
class Turned(Unlimited):
    rows: int = 1

    def reference(self, q, k, v, *, scale, visible=None):
        return attend_to(seen(q, k, visible)[None].repeat(len(k), 0), q, k, v, scale=scale)


@dataclass(frozen=True)
class Blind(Unlimited):
    rows: int = 1

    def reference(self, q, k, v, *, scale, visible=None):
        none = np.zeros((q.shape[1], len(k), k.shape[1]), bool)
        return attend_to(none, q, k, v, scale=scale)


@dataclass(frozen=True)
class Wrong(Unlimited):
    rows: int = 1

    def reference(self, q, k, v, *, scale, visible=None):
        return Attended(q[0], k, v)


@dataclass(frozen=True)
class Odd(Unlimited):
    """Returns exact attention with one thing that cannot be."""

    rows: int = 1
    what: str = "nothing"

    def new_state(self):
        return 1 / 0 if self.what == "state" else None

    stateless = False

    def reference(self, q, k, v, *, scale, visible=None, states=None):
        if self.what == "leaves":
            raise SystemExit(3)
        if self.what == "writes":
            q *= scale
        found = attend_to(seen(q, k, visible)[:, None].repeat(len(k), 1), q, k, v, scale=scale)
        changes = {
            "nan": {"output": found.output * np.nan},
            "complex": {"output": found.output * 1j},
            "list": {"output": found.output.tolist()},
            "floats": {"keys": 4.0 * found.keys},
            "below": {"sketch_bytes": np.full(found.keys.shape[:2], -1)},
            "parts": {"sketch_bytes": np.full(found.keys.shape[:2], 0.5)},
        }
        return replace(found, **changes.get(self.what, {}))


@dataclass(frozen=True)
class NoLimit(Unlimited):
    rows: int = 1

    @classmethod
    def exact_limit(cls):
        return cls.forgotten


@dataclass(frozen=True)
class Nothing(Unlimited):
    rows: int = 1

    def reference(self, q, k, v, *, scale, visible=None): ...


@dataclass(frozen=True)
class Remembers(Unlimited):
    rows: int = 1
    stateless = False
''',
    "unfinished": "import no_such_module\n",
    "parts.rules": "import parts.gone\n",
    "others": '''
"""Techniques of other seams."""
from dataclasses import dataclass
from math import exp

from suffice.attention.levels import Levels
from suffice.policy.streaming import Streaming
from suffice.speculate.ngram import NGram
from suffice.speculate.tree import NO_DRAFTS, Tree


@dataclass(frozen=True)
class BySeven:
    """Grows by seven rows."""

    def next_capacity(self, needed, capacity, limit):
        return min(-(-needed // 7) * 7, limit)


@dataclass(frozen=True)
class Stuck(BySeven):
    def next_capacity(self, needed, capacity, limit):
        raise KeyError(needed)


@dataclass(frozen=True)
class Wild(BySeven):
    """Asks for what cannot be."""

    what: str = "nothing"

    def next_capacity(self, needed, capacity, limit):
        if self.what == "leaves":
            raise SystemExit(0)
        found = {"none": None, "less": 0, "more": 10**12, "text": "7", "half": needed + 0.5}
        return found[self.what]


@dataclass(frozen=True)
class Ends(Streaming):
    """Keeps both ends."""

    sinks: int = 8


@dataclass(frozen=True)
class Pairs(NGram):
    """Drafts what followed the last two tokens."""

    prompt_lookup_max: int = 2


@dataclass(frozen=True)
class Rambles(NGram):
    """Drafts what cannot be."""

    what: str = "nothing"

    def proposer(self, models):
        return None if self.what == "proposer" else self

    def propose(self, samples, shapes):
        return {
            "none": None,
            "fewer": [],
            "lists": [[1]],
            "unknown": [Tree.chain([10**9])],
            "below": [Tree.chain([-1])],
            "floats": [Tree.chain(["1"])],
            "orphans": [Tree((1, 2), (-1,))],
            "later": [Tree((1, 2), (1, -1))],
            "forgets": [NO_DRAFTS],
        }[self.what]

    def forget(self, sample):
        if self.what == "forgets":
            raise SystemExit(0)


@dataclass(frozen=True)
class Halves:
    """Weights in powers of e, three of them and none."""

    prefill = False
    coded = True

    @classmethod
    def exact_limit(cls):
        return None

    def levels(self, calibration):
        own = Levels((-3.0, -2.0, -1.0), (0.0, exp(-2), exp(-1), 1.0))
        return [[own] * calibration.heads for _ in calibration.layers]
''',
}


def write(folder: Path) -> Path:
    """Write the example and the modules to a folder, with what an installer says of the example."""
    for name, text in MODULES.items():
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "my_rule.py").write_text((EXAMPLE / "my_rule.py").read_text())
    project = (EXAMPLE / "pyproject.toml").read_text()
    groups = re.findall(r'\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = .*\n)+)', project)
    [name] = re.findall(r'^name = "(.*)"', project, re.MULTILINE)
    about = folder / f"{name.replace('-', '_')}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = [f"[{group}]\n{lines.replace(chr(34), '')}" for group, lines in groups]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return folder
