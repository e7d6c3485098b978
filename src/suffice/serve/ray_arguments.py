"""The arguments of `serve run suffice.serve.ray:build`, texts or values of a YAML file.

Also checks the address of a cluster, without Ray.
"""

from __future__ import annotations

import dataclasses
import socket
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from suffice.engine.options import EngineOptions, options
from suffice.errors import InputError, OptionError, brief, one_line, unknown
from suffice.flags import offered
from suffice.pull import DEFAULT_MODEL
from suffice.serve.settings import GENERATION, Limits, Settings

FRONT_NODES = ("head", "any")
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Cluster:
    """How many engines and fronts there are, and where.

    Attributes:
        threads: Cores of an engine: what Ray counts as its CPUs.
        instances: Engines; at first, if there is a range.
        min_instances, max_instances: Of the range that follows the load; None for a fixed number.
        fronts: Processes that speak HTTP.
        front_nodes: Where they are: "head", the head node, or "any".
        generation_config: Where defaults of sampling come from, as `--generation-config`.
    """

    threads: int = 1
    instances: int = 1
    min_instances: int | None = None
    max_instances: int | None = None
    fronts: int = 1
    front_nodes: str = "head"
    generation_config: str = "auto"

    def __post_init__(self) -> None:
        for name in ("threads", "instances", "fronts"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "must be at least 1")
        if self.front_nodes not in FRONT_NODES:
            raise unknown("front_nodes", self.front_nodes, FRONT_NODES)
        if self.generation_config not in GENERATION:
            raise unknown("generation_config", self.generation_config, GENERATION)
        if (self.min_instances is None) != (self.max_instances is None):
            raise InputError("a range of engines needs both min_instances and max_instances")
        least, most = self.min_instances or self.instances, self.most
        if not 1 <= least <= self.instances <= most:
            raise InputError(
                "1 <= min_instances <= instances <= max_instances must hold; they are "
                f"{least}, {self.instances}, {most}"
            )

    @property
    def most(self) -> int:
        """The most engines that there may be."""
        return self.max_instances or self.instances


# Settings of a server on one machine; there, Ray listens, serves one model, and engines have other
# disks than the front.
_ELSEWHERE = (
    *("host", "port", "uds", "share_weights", "ssl_keyfile", "ssl_certfile"),
    *("max_loaded", "keep_alive", "slot_save_path"),
)
_SERVER = {  # the other settings, by argument
    own.argument: name for name, (_, own) in offered(Settings).items() if name not in _ELSEWHERE
}
_HANG_SECONDS = 60.0  # less than the server's: requests come to it until then
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def names() -> list[str]:
    """Return the names of all arguments."""
    return sorted({*_engine_names(), *_types(Cluster), *_types(Limits), *_SERVER})


def read(args: Mapping[str, Any]) -> tuple[Settings, Cluster]:
    """Return what arguments say: settings of a server with one engine, and how many there are.

    Raises:
        InputError: An unknown argument, or a value out of range.
    """
    engine: dict[str, Any] = {}
    server: dict[str, Any] = {"hang_seconds": _HANG_SECONDS}
    groups: dict[type, dict[str, Any]] = {Cluster: {}, Limits: {}}
    aliases = _engine_names()
    for name, value in args.items():
        group = next((each for each in groups if name in _types(each)), None)
        if group is not None:
            groups[group][name] = _value(name, value, _types(group)[name])
        elif name in _SERVER:
            server[_SERVER[name]] = _value(name, value, _types(Settings)[_SERVER[name]])
        elif name in aliases:
            engine[aliases[name]] = _engine_value(value)
        else:
            raise unknown("argument", str(name), names())
    cluster, limits = Cluster(**groups[Cluster]), Limits(**groups[Limits])
    return _settings(engine, server, limits, cluster), cluster


def _settings(
    engine: dict[str, Any], server: dict[str, Any], limits: Limits, cluster: Cluster
) -> Settings:
    from suffice.engine.config import Config

    engine.setdefault("model", DEFAULT_MODEL)
    settings = Settings(model=str(engine["model"]), page=False, **server)
    engine["max_num_seqs"] = settings.max_num_seqs
    config = Config.built(EngineOptions(**engine))  # refuses bad options
    for text in limits.allow_attention:
        config.with_attention(text)
    return dataclasses.replace(
        settings,
        options={**engine, "threads": cluster.threads},  # not checked here: nodes may have more
        limits=limits.read(),
    )


def _engine_names() -> dict[str, str]:
    """Return the engine's options by their names in Python, and by those of their flags."""
    found: dict[str, str] = {}
    for name, (_, option) in options().items():
        flags = () if option.flag is None else option.flag.names
        plain = [flag.partition("/")[0] for flag in flags]  # without what turns it off
        long = [flag.lstrip("-").replace("-", "_") for flag in plain if flag.startswith("--")]
        found.update(dict.fromkeys((name, *long), name))
    for name in ("threads", "max_num_seqs"):  # given by `threads` and `parallel`
        found = {each: own for each, own in found.items() if own != name}
    return found


def _types(group: type) -> dict[str, Any]:
    return get_type_hints(group)


def _engine_value(value: Any) -> Any:
    """Return an option's value; JSON, which `speculative_config` may be, as what it stands for."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise InputError(f"{brief(value)}: is not JSON: {error}") from None
    return value


def _value(name: str, value: Any, kind: Any) -> Any:
    """Return a value of the type that a field has.

    Raises:
        OptionError: It is none.
    """
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = next(each for each in get_args(kind) if each is not type(None))
    if kind is bool:
        found = _TRUTH.get(str(value).lower())
        if found is None:
            raise OptionError(name, value, "must be true or false")
        return found
    if kind in (int, float):
        try:
            return kind(str(value))
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise OptionError(name, value, f"must be {what}") from None
    if kind is str:
        return str(value)
    texts = value.split(",") if isinstance(value, str) else value
    return tuple(str(each) for each in texts)


def check_address(address: str) -> None:
    """Check that something listens at the address of a cluster, for which Ray waits minutes.

    Raises:
        InputError: It is no address, or nothing answers there.
    """
    if address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"--ray {address}: must be a head's address, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        why = one_line(error.strerror or error)
        raise InputError(f"--ray {address}: nothing answers there: {why}") from None
