"""The loop of every runner of speed.py: a process per engine that times cases on request.

Runs inside each peer's own environment, so it imports nothing but the standard library. A request
is a line of JSON on standard input, such as {"do": "decode", "prompts": [[1, 2]], "count": 64}; the
answer is a line of JSON on the original standard output. The engine's own output goes to standard
error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol

PR_SET_PDEATHSIG = 1


class Engine(Protocol):
    """An engine that runs the model; every answer is a dictionary for JSON."""

    def about(self) -> dict[str, Any]:
        """Return versions and settings for the results."""
        ...

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        """Run a prompt up to its first token; return `seconds`."""
        ...

    def decode(self, prompts: list[list[int]], count: int) -> dict[str, Any]:
        """Run prompts of one length, then `count` more tokens of each, chosen greedily.

        `seconds` covers the `count` steps only, not the prompt and its first token;
        `tokens` has all `count` + 1 tokens of the first prompt.
        """
        ...


def serve(build: Callable[[dict[str, Any]], Engine]) -> None:
    """Build an engine with the options in the first argument and answer until the input ends."""
    # End together with the client, however that ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # an error stays the last line of the log

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    engine = build(json.loads(sys.argv[1]))
    say(engine.about())
    for line in sys.stdin:
        request = json.loads(line)
        say(getattr(engine, request.pop("do"))(**request))


def counts(count: int | list[int], prompts: list[list[int]]) -> list[int]:
    """Return how many tokens each prompt gets."""
    return count if isinstance(count, list) else [count] * len(prompts)
