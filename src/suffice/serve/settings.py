"""The settings of a server: one frozen value, checked once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from suffice.engine.option_values import named_folders, size, whole
from suffice.errors import InputError, OptionError

GENERATION = ("auto", "openai", "vllm")  # the last two are OpenAI's defaults
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
ENGINE = "suffice.serve.model:opened"
# The flags of what is called otherwise here.
FLAGS = {
    "max_num_seqs": "parallel",
    "served_names": "alias",
    "api_keys": "api_key",
    "request_seconds": "request_timeout",
    "shutdown_seconds": "shutdown_timeout",
    "hang_seconds": "hang_timeout",
    "keep_alive_seconds": "sse_ping_interval",
    "tool_parser": "tool_call_parser",
    "allowed_origins": "cors_origins",
}
_POSITIVE = (
    "request_seconds",
    "max_body_bytes",
    "body_seconds",
    "heartbeat_seconds",
    "stall_seconds",
    "step_seconds",
    "hang_seconds",
    "keep_alive_seconds",
)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-fA-F:]+\]|[\w.-]+)(:[0-9]{1,5})?|null")
_MOST = 2**31 - 1  # of numbers


@dataclass(frozen=True)
class Settings:
    """What the server listens on and what it allows.

    Attributes:
        model: As the user gave it; the first of `served_names` if there are no others.
        options: The engine's options by name, plain values.
        limits: Of the engine as a server's: keywords of `engine.service.Engine`.
        share_prefixes: Whether keys and values of common beginnings are shared between API keys.
        instances: How many engines share the requests; `options` and `limits` are of each.
        share_weights: Whether engines of a NUMA node have their weights in memory that they share;
            None: if that costs nothing (see `life.sharing`).
        max_queue: Requests that may wait beyond those that run.
        max_per_key: Requests of one API key at a time; 0 for no limit.
        request_seconds: Longest time of a request; None for no limit.
        shutdown_seconds: After a signal, how long requests may go on.
        heartbeat_seconds: An engine that says nothing for as long is unhealthy.
        step_seconds: An engine that has work and made no step for as long is unhealthy.
        hang_seconds: An engine that does so for as long is killed; its requests go on in another.
        stall_seconds: A client that reads nothing for as long is given up.
        engine: "module:function" that makes the engine in its process.
        metrics_prefix: Of the metrics' names.
        page: Whether there is a page for browsers at `/`, with a live view.
        tool_parser: How the model writes tool calls; "auto" asks its chat template.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    share_prefixes: bool = False
    instances: int = 1
    share_weights: bool | None = None
    max_queue: int = 256
    max_num_seqs: int = 16
    max_per_key: int = 0
    request_seconds: float | None = None
    shutdown_seconds: float = 30.0
    keep_alive_seconds: float = 15.0
    heartbeat_seconds: float = 10.0
    step_seconds: float = 60.0
    hang_seconds: float = 120.0
    stall_seconds: float = 60.0
    body_seconds: float = 60.0
    max_body_bytes: int = 8 << 20
    allow_unknown_fields: bool = False
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    metrics_prefix: str = "suffice"
    tool_parser: str = "auto"
    allowed_origins: tuple[str, ...] = ()
    root_path: str = ""
    page: bool = True
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    access_log: bool = True
    engine: str = ENGINE

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            self._refuse("port", "must be a whole number in [0, 65535]")
        for name in ("instances", "max_num_seqs"):
            self._check_whole(name, 1)
        for name in ("max_queue", "max_per_key"):
            self._check_whole(name, 0)
        if not 0 <= self.shutdown_seconds <= _MOST:
            self._refuse("shutdown_seconds", f"must be a number from 0 to {_MOST}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST:
                self._refuse(name, f"must be a number above 0, at most {_MOST}")
        self._check_texts()

    def _check_whole(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            self._refuse(name, f"must be a whole number of at least {least}")
        if getattr(self, name) > _MOST:
            self._refuse(name, f"must be a whole number of at most {_MOST}")

    def _check_texts(self) -> None:
        if not self.host:
            self._refuse("host", "must be an address: 127.0.0.1, or 0.0.0.0 for all")
        if self.uds == "":
            self._refuse("uds", "must be a path")
        if not self.metrics_prefix.isidentifier():
            raise OptionError(
                "metrics_prefix", self.metrics_prefix, "must be a word such as 'suffice' or 'vllm'"
            )
        for name in self.adapters:
            if name in self.names:
                self._refuse("adapter", "must not be a name of the model", name)
        if "" in self.served_names:
            self._refuse("served_names", "must be a name", "")
        for origin in self.allowed_origins:
            if (must := _origin_fault(origin)) is not None:
                self._refuse("allowed_origins", must, origin)
        root = self.root_path
        if root and (right := "/" + root.strip("/")) != root:
            self._refuse(
                "root_path", f"must be a path as the proxy has it. Did you mean '{right}'?"
            )
        if any(not key.strip() or not key.isascii() for key in self.api_keys):
            raise InputError("an API key is empty or has characters beyond ASCII")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise InputError("TLS needs both --ssl-keyfile and --ssl-certfile")

    def _refuse(self, name: str, must: str, value: Any = None) -> NoReturn:
        given = getattr(self, name) if value is None else value
        raise OptionError(FLAGS.get(name, name), given, must)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names under which the model is served; answers have the first."""
        if self.served_names:
            return self.served_names
        short = Path(self.model).stem if self.model.endswith(".gguf") else Path(self.model).name
        return tuple(dict.fromkeys((self.model, short))) if short else (self.model,)

    @cached_property
    def adapters(self) -> tuple[str, ...]:
        """The names of adapters, which requests give as their model's."""
        given = named_folders("adapter", self.options.get("adapters", ()))
        return tuple(name for name, _ in given)


def _origin_fault(given: str) -> str | None:
    """Return what an origin must be, with the nearest one; None if it is one."""
    if given == "*" or _ORIGIN.fullmatch(given):
        return None
    bare = given.strip().rstrip("/")
    near = next((each for each in (bare, f"https://{bare}") if _ORIGIN.fullmatch(each)), None)
    hint = "" if near is None else f". Did you mean '{near}'?"
    return f"must be an origin such as https://example.org, without a path, or * for all{hint}"


def limits(
    *,
    step_ms: float,
    max_queued_tokens: int | None,
    prefix_cache_bytes: str | None,
    allow_attention: Sequence[str],
) -> dict[str, Any]:
    """Return an engine's limits as a server's, from what a user gave.

    Raises:
        InputError: A value out of range.
    """
    if not 0 < step_ms <= _MOST:
        raise OptionError("step_ms", step_ms, f"must be a number above 0, at most {_MOST}")
    kept = prefix_cache_bytes
    return {
        "step_ms": step_ms,
        "max_queued_tokens": whole(1, none=True)("max_queued_tokens", max_queued_tokens),
        "prefix_bytes": 0 if kept == "0" else size("prefix_cache_bytes", kept),
        "attentions": list(allow_attention),
    }


def sampling_defaults(choice: str, model: str) -> dict[str, Any]:
    """Return what requests without a value are sampled with; `model` is its folder or file.

    Raises:
        InputError: An unknown choice.
    """
    if choice not in GENERATION:
        raise InputError(f"--generation-config {choice}: must be one of {', '.join(GENERATION)}")
    path = Path(model) / "generation_config.json"
    if choice != "auto" or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: found[name] for name in _SAMPLING if found.get(name) is not None}
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"{path}: is no JSON object; or give --generation-config openai") from None
