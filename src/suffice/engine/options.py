"""The options of an engine: one dataclass declares each, once.

`LLM` and `Config.create` take them as keywords, the command line makes its flags of them, and the
environment variables follow from the flags.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from suffice.attention import ATTENTIONS, SOFTMAXES, Attention
from suffice.cache import GROWTHS, Growth
from suffice.engine import option_values as values
from suffice.engine.foreign import without_foreign
from suffice.errors import OptionError, unknown
from suffice.experts import EXPERTS, ChoiceOfExperts
from suffice.flags import REQUIRED, Flag
from suffice.policy import POLICIES, Policy
from suffice.pull import DEFAULT_MODEL
from suffice.speculate import Speculator

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.attention.softmax import Softmax
    from suffice.quant import Quant


P = ParamSpec("P")
Self = TypeVar("Self")
Result = TypeVar("Result")

# The folder of prompts, and what else is about it.
ON_DISK = ("prefix_dir", "prefix_disk_bytes", "prefix_max_age", "prefix_secret")


@dataclass(frozen=True)
class Option:
    """What the field of an option declares besides its name, type and default.

    Attributes:
        parse: Returns the value for `Config`, or raises `InputError`.
        flag: The option on the command line; None if it has no flag.
        plain: The default on the command line.
        inexact: Whether the option changes results; `ModelFlags.exact` leaves it out.
    """

    parse: values.Parser
    flag: Flag | None
    plain: Any
    inexact: bool


def _option(
    default: Any,
    parse: values.Parser,
    own: Flag | None = None,
    plain: Any = ...,
    inexact: bool = False,
) -> Any:
    option = Option(parse, own, default if plain is ... else plain, inexact)
    return field(default=default, metadata={"option": option})


def _model(default: Any, parse: values.Parser, names: str, help: str, **more: Any) -> Any:
    return _option(default, parse, Flag(tuple(names.split()), help, "Model"), **more)


def _technique(default: Any, parse: values.Parser, names: str, help: str, **more: Any) -> Any:
    return _option(default, parse, Flag(tuple(names.split()), help, "Techniques"), **more)


@dataclass(frozen=True)
class EngineOptions:
    """The options of an engine, as a user gives them: text, numbers, or technique objects.

    Attributes:
        model: A known name, a Hugging Face directory or id, or a .gguf file.
        tokenizer: Where the tokenizer is, if not with the model.
        threads: Threads of the native core; None for all cores this process may use.
        max_model_len: Context length in tokens; None for the model's own.
        dtype: Type of all weights; "auto" for the checkpoint's, whose codes stay codes.
        kv_cache_dtype: Type of the cached keys and values, or "KEYS/VALUES"; "auto" for `dtype`.
        kv_cache_bytes: Most bytes for all caches together; None for no limit.
        quantization: How weights are stored; None for `dtype`, or as the file stores them.
        attention, softmax, policy, experts, growth: The techniques.
        speculative_config: Who drafts tokens: a name, or vLLM's {"method": "name", ...}.
        calibration: The file of `suffice calibrate`, for techniques that need one.
        audit: Every `audit` decode steps, also compute exact attention and record the error in
            the runner's trace; None for never.
        adapters: LoRA adapters that requests may name: {"name": folder}, or "NAME=FOLDER" texts.
        adapter: The adapter of requests that name none; None for the model itself.
        merge_adapter: Folder of an adapter that is added to the weights when they are loaded.
        packed: Whether packed weights are kept on disk, for the next start.
        packed_bytes: Most bytes of all that is kept so; None for no limit.
        max_num_seqs: Most samples that decode together.
        seed: For requests without a seed; None for a different one every time.
        prefill_chunk: Prompt tokens that run together.
        prefix_dir: Folder in which rows of prompts are kept for later processes; None keeps none.
        prefix_disk_bytes: Most bytes of that folder; None for no limit. 64 MiB of the disk
            stay free.
        prefix_max_age: Seconds, or a time such as "30d", after which rows that nobody used go; None
            for never.
        prefix_secret: File with the secret that names what is kept; None for one in the folder.
    """

    model: str | os.PathLike[str] = field(
        metadata=_model(
            REQUIRED,
            values.model_name,
            "-m --model",
            "A name that `pull` knows, a folder, a hub id or a .gguf file.",
            plain=DEFAULT_MODEL,
        ).metadata
    )
    _: KW_ONLY
    tokenizer: str | os.PathLike[str] | None = _model(
        None, values.text, "--tokenizer", "Where the tokenizer is, if not with the model."
    )
    threads: int | None = _model(
        None, values.threads, "-t --threads", "Threads; default: the cores this process may use."
    )
    max_model_len: int | None = _model(
        None,
        values.whole(2, none=True),
        "-c --ctx-size --max-model-len",
        "Context in tokens; default: the model's.",
    )
    dtype: str = _model(
        "auto",
        values.dtype,
        "--dtype",
        "Type of all weights: float32 (f32), bfloat16 (bf16); auto: as the file stores them.",
    )
    kv_cache_dtype: str = _model(
        "auto",
        values.kv_dtype,
        "--kv-cache-dtype",
        "Type of cached keys and values, or KEYS/VALUES: auto, float32 (f32), "
        "bfloat16 (bf16), float16 (f16), int8, kmeans4, planes.",
        plain=None,
        inexact=True,
    )
    kv_cache_bytes: int | str | None = _model(
        None,
        values.size,
        "--kv-cache-bytes",
        "Memory limit of cached keys and values, such as 4GiB.",
    )
    quantization: str | Quant | None = _technique(
        None,
        values.quant_of,
        "--quant --quantization",
        "How weights are stored: file, int8, ...; `suffice info quant` lists them.",
        inexact=True,
    )
    attention: str | Attention = _technique(
        "exact",
        values.of_table(ATTENTIONS),
        "--attention",
        "How attention is computed: exact, certified:eps=0.05, ...; "
        "`suffice info attention` lists them.",
        inexact=True,
    )
    softmax: str | Softmax = _technique(
        "exact",
        values.of_table(SOFTMAXES),
        "--softmax",
        "How scores become weights: exact, exaq:bits=2, ...; `suffice info softmax` lists them.",
        inexact=True,
    )
    calibration: str | os.PathLike[str] | Calibration | None = _technique(
        None,
        values.calibration,
        "--calibration",
        "File that `suffice calibrate` wrote for the model.",
        inexact=True,
    )
    policy: str | Policy = _technique(
        "full",
        values.of_table(POLICIES),
        "--policy",
        "Which cached tokens may be read: full, snapkv:ratio=0.5, ...; "
        "`suffice info policy` lists them.",
        inexact=True,
    )
    experts: str | ChoiceOfExperts = _technique(
        "all",
        values.of_table(EXPERTS),
        "--experts",
        "Which of a token's experts are computed: all, mass:keep=0.98; "
        "`suffice info experts` lists them.",
        inexact=True,
    )
    audit: int | None = _technique(
        None,
        values.whole(1, none=True),
        "--audit",
        "Every N decode steps, also compute exact attention and report the error.",
        inexact=True,
    )
    growth: str | Growth = _technique(
        "bmc",
        values.of_table(GROWTHS),
        "--growth",
        "How the cache grows: bmc, step:rows=256, ...; `suffice info growth` lists them.",
    )
    speculative_config: str | Mapping[str, Any] | Speculator | None = _technique(
        None,
        values.speculator,
        "--speculate --speculative-config",
        'Who drafts tokens: a name, or JSON such as {"method": "ngram"}; '
        "`suffice info speculate` lists them.",
        inexact=True,
    )
    adapters: str | Mapping[str, str | os.PathLike[str]] | Sequence[Any] = _option(
        (), values.named_folders
    )
    adapter: str | None = _option(None, values.text)
    merge_adapter: str | os.PathLike[str] | None = _model(
        None,
        values.text,
        "--merge-adapter",
        "Folder of a LoRA adapter that is added to the weights as they are loaded.",
    )
    packed: bool = _model(
        True,
        values.yes_or_no,
        "--packed/--no-packed",
        "Keep packed weights on disk, where that makes the next start shorter.",
    )
    packed_bytes: int | str | None = _model(
        "20GiB",
        values.size,
        "--packed-bytes",
        "Most bytes of all packed weights on disk; those used longest ago go first.",
    )
    max_num_seqs: int = _option(16, values.whole(1))
    seed: int | None = _option(0, values.whole(0, none=True))
    prefill_chunk: int = _option(512, values.whole(1))
    prefix_dir: str | os.PathLike[str] | None = _option(None, values.path)
    prefix_disk_bytes: int | str | None = _option("20GiB", values.size)
    prefix_max_age: float | str | None = _option(None, values.age)
    prefix_secret: str | os.PathLike[str] | None = _option(None, values.path)


def options() -> dict[str, tuple[Field[Any], Option]]:
    """Return the options by name: the field of `EngineOptions`, and its declaration."""
    return {
        each.name: (each, each.metadata["option"]) for each in dataclasses.fields(EngineOptions)
    }


def read(given: EngineOptions) -> dict[str, Any]:
    """Return the parsed options, by name.

    Raises:
        InputError: A value that its option does not take.
    """
    found = {
        name: option.parse(name, getattr(given, name)) for name, (_, option) in options().items()
    }
    if found["prefix_dir"] is None:
        _check_no_folder(given, found)
    return found


def _check_no_folder(given: EngineOptions, found: dict[str, Any]) -> None:
    """Refuse options of a folder of prompts that there is not; defaults say nothing."""
    for name in ON_DISK[1:]:
        field, option = options()[name]
        if found[name] != option.parse(name, field.default):
            must = "needs prefix_dir (--prefix-dir), the folder that it is about"
            raise OptionError(name, getattr(given, name), must)


def takes_options(
    options_class: Callable[P, EngineOptions],
) -> Callable[[Callable[[Self, EngineOptions], Result]], Callable[Concatenate[Self, P], Result]]:
    """Return a decorator that lets a method (self, options) take the options as keywords.

    Editors, mypy and `inspect.signature` see the keywords of `EngineOptions`. The method raises
    `InputError` for an unknown keyword.
    """

    def decorator(
        method: Callable[[Self, EngineOptions], Result],
    ) -> Callable[Concatenate[Self, P], Result]:
        @functools.wraps(method)
        def wrapper(self: Self, /, *arguments: P.args, **given: P.kwargs) -> Result:
            known = options()
            given = without_foreign(given)  # type: ignore[assignment]
            for name in given:
                if name not in known:
                    raise unknown("option", name, known)
            return method(self, options_class(*arguments, **given))

        own = next(iter(inspect.signature(method).parameters.values()))
        parameters = inspect.signature(options_class).parameters.values()
        wrapper.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        return wrapper

    return decorator
