"""`suffice serve`: the flags of the server, and what they become."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.cli.adapters import AdapterFlags
from suffice.cli.flags import argument, flag, flags_of
from suffice.cli.instances import InstanceFlags
from suffice.cli.options import ModelFlags, speculation
from suffice.cli.prefixes import PrefixFlags
from suffice.cli.served_models import EachModelFlags, ServedModels
from suffice.errors import InputError
from suffice.serve.settings import Limits, Settings, sampling_defaults

_EXTRA = "pip install 'suffice[serve]'"


@dataclass(frozen=True)
class ServerFlags(InstanceFlags):
    """Where the server listens, whom it serves, and its limits."""

    own: Mapping[str, Any] = flags_of(Settings, dict, named=True)
    limits: Limits = flags_of(Limits, Limits)
    api_key_file: Path | None = flag(
        None,
        "--api-key-file",
        "A file with a key per line; lines that begin with # are comments.",
        panel="Server",
    )
    generation_config: str = flag(
        "auto",
        "--generation-config",
        "Defaults of sampling: auto (of the model's generation_config.json), openai, or "
        "vllm, the same as openai.",
        panel="Server",
    )
    no_page: bool = flag(
        False, "--no-page --no-ui", "Serve no page for browsers at /.", panel="Server"
    )
    no_access_log: bool = flag(
        False, "--disable-uvicorn-access-log --no-access-log", "Log no requests.", panel="Server"
    )

    def check_tls(self) -> None:
        """Check that TLS can use the key and the certificate, if both are given.

        Raises:
            InputError: It cannot.
        """
        certificate, key = (self.own.get(f"ssl_{name}file") for name in ("cert", "key"))
        if certificate is None or key is None:
            return
        import ssl

        try:
            for path in (certificate, key):
                Path(path).open("rb").close()
            ssl.create_default_context().load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            reason = error.reason or "not a certificate and its key in PEM's form"
            raise InputError(f"--ssl-certfile {certificate}: {reason}") from None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; TLS needs this file") from None

    def keys(self) -> tuple[str, ...]:
        """Return the API keys of the flags and of the file.

        Raises:
            InputError: The file cannot be read, or has no key.
        """
        found = list(self.own.get("api_keys", ()))
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


def settings(flags: ServerFlags, model: ModelFlags, names: tuple[str, ...] = ()) -> Settings:
    """Return a model's settings; bad options are refused before anything is loaded.

    `names` are those that requests give for it, unless `--alias` has others.

    Raises:
        InputError: A bad value, or contradictory options.
    """
    from suffice.pull import resolve

    own = dict(flags.own)
    places = own.get("max_num_seqs", Settings.max_num_seqs)
    model = flags.with_threads(model)
    config = model.config()  # refuses bad options
    for text in flags.limits.allow_attention:
        config.with_attention(text)
    flags.check_tls()
    path, options = resolve(model.model), engine_options(model, places)
    if Path(model.model).expanduser().exists():  # if it goes, it must not be taken for a hub id
        options["model"] = str(Path(model.model).expanduser().absolute())
    own["api_keys"] = flags.keys()
    own["served_names"] = own.get("served_names") or names
    return Settings(
        **own,
        model=model.model,
        options=options,
        limits=flags.limits.read(),
        instances=flags.engines(model.options.threads),
        default_sampling=sampling_defaults(flags.generation_config, path),
        page=not flags.no_page,
        access_log=not flags.no_access_log,
    )


def check_common(flags: ServerFlags, model: ModelFlags) -> None:
    """Refuse what is of one model, for a server of several.

    Raises:
        InputError: It is given.
    """
    given = {
        "--alias": flags.own.get("served_names"),
        "--adapter": model.options.adapters,
        "--tokenizer": model.options.tokenizer,
        "--calibration": model.options.calibration,
        "--merge-adapter": model.options.merge_adapter,
    }
    for name, value in given.items():
        if value:
            raise InputError(f"{name}: is for one model, and several are served")


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


def run(
    given: list[str] | None = argument(None, "Models, as with -m.", metavar="MODEL"),
    *,
    models: ServedModels,
    server: ServerFlags,
    model: EachModelFlags,
    adapters: AdapterFlags,
    prefixes: PrefixFlags,
) -> None:
    """Serve models by OpenAI's API."""
    import click

    try:
        from suffice.serve.run import serve
    except ImportError as error:
        raise InputError(f"`suffice serve` needs {error.name}: {_EXTRA}") from None
    found = models.found(given or ())
    common = prefixes.on(adapters.on(model))
    if len(found) > 1:
        check_common(server, common)
    several = [settings(server, model_of(common, path), names) for path, names in found]
    if code := serve(several):
        raise click.exceptions.Exit(code)


def model_of(flags: ModelFlags, model: str) -> ModelFlags:
    """Return the flags of one of the models."""
    return dataclasses.replace(flags, options=dataclasses.replace(flags.options, model=model))
