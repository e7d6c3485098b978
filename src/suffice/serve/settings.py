"""The settings of a server: each declared once, with its default, range and flag.

The flags of `suffice serve` and the arguments of the server on Ray are made of the fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

from suffice.engine.option_values import named_folders, seconds, size, whole
from suffice.errors import InputError, OptionError
from suffice.flags import Fault, flag, offered
from suffice.paths import private_folder_fault

GENERATION = ("auto", "openai", "vllm")  # the last two are OpenAI's defaults
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
ENGINE = "suffice.serve.processes.model:opened"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-fA-F:]+\]|[\w.-]+)(:[0-9]{1,5})?|null")
_MOST = 2**31 - 1  # of numbers

_server = partial(flag, panel="Server")


def _whole(least: int) -> Fault:
    def fault(value: int) -> str | None:
        bound = f"at least {least}" if value < least else f"at most {_MOST}"
        return None if least <= value <= _MOST else f"must be a whole number of {bound}"

    return fault


def _port(value: int) -> str | None:
    return None if 0 <= value < 65536 else "must be a whole number in [0, 65535]"


def _seconds(value: float) -> str | None:
    return None if 0 <= value <= _MOST else f"must be a number from 0 to {_MOST}"


def _positive(value: float | None) -> str | None:
    sound = value is None or 0 < value <= _MOST
    return None if sound else f"must be a number above 0, at most {_MOST}"


def _time(value: str) -> str | None:
    try:
        seconds("", value)
    except OptionError as error:
        return error.must
    return None


def _optional(fault: Fault) -> Fault:
    return lambda value: None if value is None else fault(value)


def _own(default: Any, fault: Fault) -> Any:
    """Declare a field with a range that no flag sets."""
    return field(default=default, metadata={"fault": fault})


def _check(given: Any) -> None:
    """Refuse values of a dataclass that are out of the range that their fields declare."""
    for each in fields(given):
        fault, value = each.metadata.get("fault"), getattr(given, each.name)
        if fault is not None and (must := fault(value)) is not None:
            raise OptionError(named(type(given), each.name), value, must)


def named(group: type[Any], name: str) -> str:
    """Return what a field is called where a user sets it."""
    found = offered(group).get(name)
    return name if found is None else found[1].argument


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
        store: Whether answers of the Responses API are kept.
        page: Whether there is a page for browsers at `/`, with a live view.
        dialect, reasoning_parser, tool_parser: How the model writes both, thinking, and calls of
            tools; "auto" asks its chat template. See `forms`.
    """

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    host: str = _server("127.0.0.1", "--host", "Address to listen on; 0.0.0.0 for all.")
    port: int = _server(8000, "--port", "Port to listen on; 0 for any.", _port)
    uds: str | None = _server(None, "--uds", "Listen on this Unix socket instead.")
    api_keys: tuple[str, ...] = _server(
        (), "--api-key", "A key that clients must send; may be repeated.", metavar="KEY"
    )
    served_names: tuple[str, ...] = _server(
        (),
        "-a --alias --served-model-name",
        "A name that clients give for the model; may be repeated.",
        metavar="NAME",
    )
    instances: int = _own(1, _whole(1))
    share_weights: bool | None = _server(
        None,
        "--share-weights/--no-share-weights",
        "Keep the weights of a NUMA node's engines once, in memory that they share and a "
        "restarted engine finds; default: yes, but for one engine without huge pages for it.",
    )
    max_num_seqs: int = _server(
        16, "-np --parallel --max-num-seqs", "Most samples that decode together.", _whole(1)
    )
    max_queue: int = _server(
        256,
        "--max-queue --max-num-queued-reqs",
        "Most requests that wait; others are refused with the time to wait.",
        _whole(0),
    )
    share_prefixes: bool = _server(
        False,
        "--share-prefixes",
        "Share kept caches between API keys; the time to the first token then tells "
        "whether others sent the same beginning.",
    )
    max_per_key: int = _server(
        0, "--max-per-key", "Most requests of a key at a time; 0: all.", _whole(0)
    )
    request_seconds: float | None = _server(
        None, "-to --request-timeout", "Longest seconds of a request.", _positive
    )
    shutdown_seconds: float = _server(
        30.0,
        "--shutdown-timeout",
        "Seconds that requests may go on after a signal to stop.",
        _seconds,
    )
    hang_seconds: float = _server(
        120.0,
        "--hang-timeout",
        "Seconds after which an engine that says nothing, has work and makes no step, or "
        "loads and does nothing, is replaced; its requests go on in another.",
        _positive,
    )
    keep_alive_seconds: float = _server(
        15.0,
        "--sse-ping-interval --sse-keep-alive-interval",
        "Seconds of silence after which a stream says that it lives.",
        _positive,
    )
    heartbeat_seconds: float = _own(10.0, _positive)
    step_seconds: float = _own(60.0, _positive)
    stall_seconds: float = _own(60.0, _positive)
    body_seconds: float = _own(60.0, _positive)
    max_body_bytes: int = _own(8 << 20, _positive)
    allow_unknown_fields: bool = _server(
        False, "--allow-unknown-fields", "Ignore unknown fields of requests."
    )
    any_model: bool = _server(
        False, "--any-model", "Answer as the first model whatever unknown one a request names."
    )
    max_loaded: int | None = _server(
        None,
        "--max-loaded --models-max",
        "Of several models, most that are loaded at a time; default: as many as memory has room "
        "for.",
        _optional(_whole(1)),
    )
    keep_alive: str | None = _server(
        None,
        "--keep-alive",
        "How long after its last request a model stays loaded, in seconds or such as 10m and 24h; "
        "default, and below 0: until another needs its place.",
        _optional(_time),
    )
    store: bool = _server(
        True,
        "--store/--no-store",
        "Keep answers of the Responses API in the cache folder, each for its key alone, so that "
        "others can go on from them; a request's store=false keeps its own out.",
    )
    store_bytes: int = _server(
        256 << 20, "--store-bytes", "Most bytes of kept answers; the oldest go.", _whole(1)
    )
    store_days: float = _server(
        30.0, "--store-days", "Days after which a kept answer goes.", _positive
    )
    slot_save_path: str | None = _server(
        None,
        "--slot-save-path",
        "A folder for the texts that POST /slots/ID?action=save keeps, as in llama.cpp.",
        _optional(private_folder_fault),
        metavar="DIR",
    )
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    metrics_prefix: str = _server(
        "suffice", "--metrics-prefix", "Prefix of the metrics' names, such as suffice or vllm."
    )
    dialect: str = _server(
        "auto",
        "--dialect",
        "How the model writes thinking and calls of tools: both by the name of a family; auto: by "
        "its chat template.",
    )
    tool_parser: str = _server(
        "auto",
        "--tool-call-parser",
        "How the model writes calls of tools, by vLLM's names: hermes, mistral, qwen3_coder, ...; "
        "auto: by its chat template.",
    )
    reasoning_parser: str = _server(
        "auto",
        "--reasoning-parser",
        "How the model writes its thinking, by vLLM's names: qwen3, deepseek_r1, ...; none: as a "
        "part of the answer; auto: by its chat template.",
    )
    allowed_origins: tuple[str, ...] = _server(
        (),
        "--cors-origins --allowed-origins",
        "An origin whose pages may call the server; may be repeated.",
        metavar="ORIGIN",
    )
    root_path: str = _server("", "--root-path --api-prefix", "Path under which a proxy serves it.")
    page: bool = True
    ssl_keyfile: str | None = _server(None, "--ssl-keyfile", "Key of TLS.")
    ssl_certfile: str | None = _server(None, "--ssl-certfile", "Certificate of TLS.")
    access_log: bool = True
    engine: str = ENGINE

    def __post_init__(self) -> None:
        _check(self)
        self._check_texts()
        _ = self.forms  # refuses unknown ones

    def _check_texts(self) -> None:
        if not self.host:
            self._refuse("host", "must be an address: 127.0.0.1, or 0.0.0.0 for all")
        if self.uds == "":
            self._refuse("uds", "must be a path")
        if not self.metrics_prefix.isidentifier():
            self._refuse("metrics_prefix", "must be a word such as 'suffice' or 'vllm'")
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
        raise OptionError(named(Settings, name), given, must)

    @cached_property
    def forms(self) -> tuple[str, str]:
        """The forms of thinking and of calls that are asked for, "auto" where none is.

        Raises:
            InputError: One is unknown, or asked for twice.
        """
        from suffice.dialects.families import forms_of
        from suffice.dialects.speech import check

        given = self.reasoning_parser, self.tool_parser
        if self.dialect != "auto":
            if given != ("auto", "auto"):
                raise InputError(
                    f"--dialect {self.dialect} stands for --reasoning-parser and "
                    "--tool-call-parser: give it or these"
                )
            given = forms_of(self.dialect)
        check(*given)
        return given

    @cached_property
    def kept_seconds(self) -> float | None:
        """How long models stay loaded after their last requests; None: see `keep_alive`."""
        return None if self.keep_alive is None else seconds("keep_alive", self.keep_alive)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names under which the model is served; answers have the first.

        A file or folder has its short name first, a model of a hub its whole one.
        """
        if self.served_names:
            return self.served_names
        short = Path(self.model).stem if self.model.endswith(".gguf") else Path(self.model).name
        both = (short, self.model) if self._is_path else (self.model, short)
        return tuple(dict.fromkeys(filter(None, both)))

    @property
    def _is_path(self) -> bool:
        paths = (self.model, str(self.options.get("model", "")))
        return self.model.endswith(".gguf") or any(Path(each).is_absolute() for each in paths)

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


@dataclass(frozen=True)
class Limits:
    """An engine's limits as a server's, as a user gives them."""

    max_queued_tokens: int | None = _server(
        None, "--max-queued-tokens", "Most tokens of the prompts that wait; default: any."
    )
    step_ms: float = _server(
        40.0,
        "--step-ms",
        "Milliseconds that prompts may delay the next token of others.",
        _positive,
    )
    prefix_cache_bytes: str | None = _server(
        None,
        "--prefix-cache-bytes",
        "Memory of caches that are kept for prompts with the same beginning, such as "
        "1GiB; 0: none; default: as --kv-cache-bytes, else 1GiB.",
    )
    allow_attention: tuple[str, ...] = _server(
        (),
        "--allow-attention",
        "An attention technique that requests may ask for, such as certified:eps=0.1, by "
        'their field {"suffice": {"attention": "certified:eps=0.1"}}; may be repeated.',
        metavar="TECHNIQUE",
    )

    def read(self) -> dict[str, Any]:
        """Return them for the engine."""
        _check(self)
        kept = self.prefix_cache_bytes
        return {
            "step_ms": self.step_ms,
            "max_queued_tokens": whole(1, none=True)("max_queued_tokens", self.max_queued_tokens),
            "prefix_bytes": 0 if kept == "0" else size("prefix_cache_bytes", kept),
            "attentions": list(self.allow_attention),
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
