"""`suffice serve`: the flags of the server, and what they become."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from suffice.cli.adapters import AdapterFlags
from suffice.cli.flags import NUMBER, WHOLE, argument, flag
from suffice.cli.instances import InstanceFlags
from suffice.cli.options import ModelFlags, speculation
from suffice.errors import InputError

if TYPE_CHECKING:
    from suffice.serve.settings import Settings

_EXTRA = "pip install 'suffice[serve]'"


@dataclass(frozen=True)
class ServerFlags(InstanceFlags):
    """Where the server listens, whom it serves, and its limits."""

    host: Annotated[
        str, flag("--host", help="Address to listen on; 0.0.0.0 for all.", panel="Server")
    ] = "127.0.0.1"
    port: Annotated[
        int, flag("--port", help="Port to listen on; 0 for any.", panel="Server", **WHOLE)
    ] = 8000
    uds: Annotated[
        str | None, flag("--uds", help="Listen on this Unix socket instead.", panel="Server")
    ] = None
    api_key: Annotated[
        list[str] | None,
        flag(
            "--api-key",
            help="A key that clients must send; may be repeated.",
            panel="Server",
            metavar="KEY",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        flag(
            "--api-key-file",
            help="A file with a key per line; lines that begin with # are comments.",
            panel="Server",
        ),
    ] = None
    alias: Annotated[
        list[str] | None,
        flag(
            "-a",
            "--alias",
            "--served-model-name",
            help="A name that clients give for the model; may be repeated.",
            panel="Server",
            metavar="NAME",
        ),
    ] = None
    parallel: Annotated[
        int,
        flag(
            "-np",
            "--parallel",
            "--max-num-seqs",
            help="Most samples that decode together.",
            panel="Server",
            **WHOLE,
        ),
    ] = 16
    max_queue: Annotated[
        int,
        flag(
            "--max-queue",
            "--max-num-queued-reqs",
            help="Most requests that wait; others are refused with the time to wait.",
            panel="Server",
            **WHOLE,
        ),
    ] = 256
    max_queued_tokens: Annotated[
        int | None,
        flag(
            "--max-queued-tokens",
            help="Most tokens of the prompts that wait; default: any.",
            panel="Server",
            **WHOLE,
        ),
    ] = None
    step_ms: Annotated[
        float,
        flag(
            "--step-ms",
            help="Milliseconds that prompts may delay the next token of others.",
            panel="Server",
            **NUMBER,
        ),
    ] = 40.0
    prefix_cache_bytes: Annotated[
        str | None,
        flag(
            "--prefix-cache-bytes",
            help="Memory of caches that are kept for prompts with the same beginning, such as "
            "1GiB; 0: none; default: as --kv-cache-bytes, else 1GiB.",
            panel="Server",
        ),
    ] = None
    share_prefixes: Annotated[
        bool,
        flag(
            "--share-prefixes",
            help="Share kept caches between API keys; the time to the first token then tells "
            "whether others sent the same beginning.",
            panel="Server",
        ),
    ] = False
    max_per_key: Annotated[
        int,
        flag(
            "--max-per-key",
            help="Most requests of a key at a time; 0: all.",
            panel="Server",
            **WHOLE,
        ),
    ] = 0
    request_timeout: Annotated[
        float | None,
        flag(
            "-to",
            "--request-timeout",
            help="Longest seconds of a request.",
            panel="Server",
            **NUMBER,
        ),
    ] = None
    shutdown_timeout: Annotated[
        float,
        flag(
            "--shutdown-timeout",
            help="Seconds that requests may go on after a signal to stop.",
            panel="Server",
            **NUMBER,
        ),
    ] = 30.0
    sse_ping_interval: Annotated[
        float,
        flag(
            "--sse-ping-interval",
            "--sse-keep-alive-interval",
            help="Seconds of silence after which a stream says that it lives.",
            panel="Server",
            **NUMBER,
        ),
    ] = 15.0
    allow_attention: Annotated[
        list[str] | None,
        flag(
            "--allow-attention",
            help="An attention technique that requests may ask for, such as certified:eps=0.1, by "
            'their field {"suffice": {"attention": "certified:eps=0.1"}}; may be repeated.',
            panel="Server",
            metavar="TECHNIQUE",
        ),
    ] = None
    allow_unknown_fields: Annotated[
        bool,
        flag("--allow-unknown-fields", help="Ignore unknown fields of requests.", panel="Server"),
    ] = False
    generation_config: Annotated[
        str,
        flag(
            "--generation-config",
            help="Defaults of sampling: auto (of the model's generation_config.json), openai, or "
            "vllm, the same as openai.",
            panel="Server",
        ),
    ] = "auto"
    metrics_prefix: Annotated[
        str,
        flag(
            "--metrics-prefix",
            help="Prefix of the metrics' names, such as suffice or vllm.",
            panel="Server",
        ),
    ] = "suffice"
    tool_call_parser: Annotated[
        str,
        flag(
            "--tool-call-parser",
            help="How the model writes tool calls: hermes, llama3; auto: by its chat template.",
            panel="Server",
        ),
    ] = "auto"
    cors_origins: Annotated[
        list[str] | None,
        flag(
            "--cors-origins",
            "--allowed-origins",
            help="An origin whose pages may call the server; may be repeated.",
            panel="Server",
            metavar="ORIGIN",
        ),
    ] = None
    root_path: Annotated[
        str,
        flag(
            "--root-path",
            "--api-prefix",
            help="Path under which a proxy serves it.",
            panel="Server",
        ),
    ] = ""
    no_page: Annotated[
        bool,
        flag("--no-page", "--no-ui", help="Serve no page for browsers at /.", panel="Server"),
    ] = False
    ssl_key_file: Annotated[
        str | None, flag("--ssl-keyfile", help="Key of TLS.", panel="Server")
    ] = None
    ssl_cert_file: Annotated[
        str | None, flag("--ssl-certfile", help="Certificate of TLS.", panel="Server")
    ] = None
    no_access_log: Annotated[
        bool,
        flag(
            "--disable-uvicorn-access-log",
            "--no-access-log",
            help="Log no requests.",
            panel="Server",
        ),
    ] = False

    def limits(self) -> dict[str, Any]:
        """Return the engine's limits.

        Raises:
            InputError: A value out of range.
        """
        from suffice.serve.settings import limits

        return limits(
            step_ms=self.step_ms,
            max_queued_tokens=self.max_queued_tokens,
            prefix_cache_bytes=self.prefix_cache_bytes,
            allow_attention=self.allow_attention or (),
        )

    def check_tls(self) -> None:
        """Check that TLS can use the key and the certificate, if both are given.

        Raises:
            InputError: It cannot.
        """
        if self.ssl_cert_file is None or self.ssl_key_file is None:
            return
        import ssl

        try:
            for path in (self.ssl_cert_file, self.ssl_key_file):
                Path(path).open("rb").close()
            ssl.create_default_context().load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
        except ssl.SSLError as error:
            reason = error.reason or "not a certificate and its key in PEM's form"
            raise InputError(f"--ssl-certfile {self.ssl_cert_file}: {reason}") from None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; TLS needs this file") from None

    def keys(self) -> tuple[str, ...]:
        """Return the API keys of the flags and of the file.

        Raises:
            InputError: The file cannot be read, or has no key.
        """
        found = list(self.api_key or ())
        if self.api_key_file is not None:
            try:
                lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
            except OSError as error:
                raise InputError(f"--api-key-file {self.api_key_file}: {error.strerror}") from None
            except UnicodeDecodeError:
                raise InputError(f"--api-key-file {self.api_key_file}: is not text") from None
            texts = map(str.strip, lines)
            own = [text for text in texts if text and not text.startswith("#")]
            if not own:
                raise InputError(f"--api-key-file {self.api_key_file}: it has no key")
            found += own
        return tuple(found)


def settings(flags: ServerFlags, model: ModelFlags) -> Settings:
    """Return the server's settings; bad options are refused before anything is loaded.

    Raises:
        InputError: A bad value, or contradictory options.
    """
    from suffice.pull import resolve
    from suffice.serve.settings import Settings, sampling_defaults
    from suffice.serve.tools import parser_of

    model = flags.with_threads(model)
    config = model.config()  # refuses bad options
    for text in flags.allow_attention or ():
        config.with_attention(text)
    parser_of(None, flags.tool_call_parser)
    flags.check_tls()
    path = resolve(model.model)
    return Settings(
        model=model.model,
        options=engine_options(model, flags.parallel),
        limits=flags.limits(),
        host=flags.host,
        port=flags.port,
        uds=flags.uds,
        api_keys=flags.keys(),
        served_names=tuple(flags.alias or ()),
        share_prefixes=flags.share_prefixes,
        instances=flags.engines(model.options.threads),
        share_weights=flags.share_weights,
        max_queue=flags.max_queue,
        max_num_seqs=flags.parallel,
        max_per_key=flags.max_per_key,
        request_seconds=flags.request_timeout,
        shutdown_seconds=flags.shutdown_timeout,
        hang_seconds=flags.hang_timeout,
        keep_alive_seconds=flags.sse_ping_interval,
        allow_unknown_fields=flags.allow_unknown_fields,
        default_sampling=sampling_defaults(flags.generation_config, path),
        metrics_prefix=flags.metrics_prefix,
        tool_parser=flags.tool_call_parser,
        allowed_origins=tuple(flags.cors_origins or ()),
        root_path=flags.root_path,
        page=not flags.no_page,
        ssl_keyfile=flags.ssl_key_file,
        ssl_certfile=flags.ssl_cert_file,
        access_log=not flags.no_access_log,
    )


def engine_options(model: ModelFlags, most: int) -> dict[str, Any]:
    """Return the engine's options as plain values, which another process can be given."""
    given = dataclasses.replace(
        model.options, kv_cache_dtype=model.cache_dtype(), max_num_seqs=most
    )
    found = {each.name: getattr(given, each.name) for each in dataclasses.fields(given)}
    found["speculative_config"] = speculation(given.speculative_config)
    return {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in found.items()
    }


def _check_named_once(given: str, flagged: str | os.PathLike[str]) -> None:
    """Refuse a model as argument if -m gives another one; a variable's is replaced.

    Raises:
        InputError: There are two.
    """
    import click
    from click.core import ParameterSource

    source = click.get_current_context().get_parameter_source("model")
    if source is ParameterSource.COMMANDLINE and flagged != given:
        raise InputError(f"the model {given} and -m {flagged} contradict each other: give one")


def run(
    given: Annotated[str | None, argument(metavar="MODEL", help="The model, as with -m.")] = None,
    *,
    server: ServerFlags,
    model: ModelFlags,
    adapters: AdapterFlags,
) -> None:
    """Serve a model by OpenAI's API."""
    import click

    try:
        from suffice.serve.run import serve
    except ImportError as error:
        raise InputError(f"`suffice serve` needs {error.name}: {_EXTRA}") from None
    if given is not None:
        _check_named_once(given, model.options.model)
        model = dataclasses.replace(model, options=dataclasses.replace(model.options, model=given))
    code = serve(settings(server, adapters.on(model)))
    if code:
        raise click.exceptions.Exit(code)
