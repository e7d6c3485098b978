"""Every flag of the command line, once: groups of them are dataclasses that commands ask for.

A command with a parameter `model: ModelFlags` gets all flags of that group. Each long flag is also
read from the environment: `--top-k` from `SUFFICE_TOP_K`; the command line wins. A variable
is one value, also where a flag may be given several times.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffice.errors import InputError
from suffice.pull import DEFAULT_MODEL, resolve
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from suffice.engine.llm import LLM


def flag(
    *names: str, help: str, panel: str | None = None, environment: bool = True, **extra: Any
) -> Any:
    """Declare an option, its long names mirrored by environment variables unless told not to."""
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    long = [name for name in long if name != "cache"]  # SUFFICE_CACHE is a folder (see paths)
    variables = ["SUFFICE_" + name.upper().replace("-", "_") for name in long]
    return typer.Option(
        *names,
        help=help,
        envvar=variables if environment else None,
        show_envvar=False,
        rich_help_panel=panel,
        **extra,
    )


def whole(text: str | int) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a whole number") from None


def number(text: str | float) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number") from None


def kv_dtype(name: str, text: str) -> str:
    """Return our name for a type of keys and values that may be given by llama.cpp's.

    Raises:
        InputError: A type of llama.cpp that has only a relative here.
    """
    if text == "q8_0":
        raise InputError(
            f"{name} q8_0: there is no q8_0 (a scale for every 32 values) here; the nearest is "
            "int8 (a scale for every row)"
        )
    return "/".join(LLAMA_CPP_DTYPES.get(part, part) for part in text.split("/"))


LONGEST = 200  # characters of a value that an error repeats


def speculation(text: str | None) -> Any:
    """Return what the engine takes for a speculator's name, or for vLLM's configuration in JSON.

    Raises:
        InputError: It begins as JSON and is none, or is no object.
    """
    if text is None or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
        why = "not an object"
    except json.JSONDecodeError as error:
        why = f"{error.msg} at character {error.pos + 1}"
    except (ValueError, RecursionError):
        why = "a number or a nesting beyond all measure"
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    raise InputError(
        f"--speculative-config={shown}: is not JSON ({why}); it looks like "
        '{"method": "ngram", "num_speculative_tokens": 8}'
    )


LLAMA_CPP_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
WHOLE: dict[str, Any] = {"parser": whole, "metavar": "N"}
NUMBER = {"parser": number, "metavar": "X"}
_MODEL = functools.partial(flag, panel="Model")
_TECHNIQUE = functools.partial(flag, panel="Techniques")
_SAMPLING = functools.partial(flag, panel="Sampling")


@dataclass(frozen=True)
class SourceFlags:
    """Which model, and how many threads work on it."""

    model: Annotated[
        str, _MODEL("-m", "--model", help="A name that `pull` knows, a folder, hub id or file.")
    ] = DEFAULT_MODEL
    tokenizer: Annotated[
        str | None, _MODEL("--tokenizer", help="Where the tokenizer is, if not with the model.")
    ] = None
    threads: Annotated[
        int | None,
        _MODEL(
            "-t", "--threads", help="Threads; default: the cores this process may use.", **WHOLE
        ),
    ] = None


@dataclass(frozen=True)
class ModelFlags(SourceFlags):
    """Which model, how it is stored, and with which techniques it is run."""

    ctx_size: Annotated[
        int | None,
        _MODEL(
            "-c",
            "--ctx-size",
            "--max-model-len",
            help="Context in tokens; default: the model's.",
            **WHOLE,
        ),
    ] = None
    dtype: Annotated[
        str, _MODEL("--dtype", help="Type of the weights: auto, float32, bfloat16.")
    ] = "auto"
    kv_cache_dtype: Annotated[
        str | None,
        _MODEL(
            "--kv-cache-dtype",
            help="Type of keys and values, or KEYS/VALUES: auto, float32 (or f32), bfloat16 "
            "(bf16), float16 (f16), int8, kmeans4.",
        ),
    ] = None
    cache_type_k: Annotated[
        str | None,
        _MODEL("-ctk", "--cache-type-k", help="Of keys, and of values if -ctv is not given."),
    ] = None
    cache_type_v: Annotated[
        str | None,
        _MODEL("-ctv", "--cache-type-v", help="Of values, and of keys if -ctk is not given."),
    ] = None
    kv_cache_bytes: Annotated[
        str | None,
        _MODEL("--kv-cache-bytes", help="Most memory for keys and values, such as 4GiB."),
    ] = None
    quant: Annotated[
        str | None,
        _TECHNIQUE("--quant", "--quantization", help="How weights are stored, such as int8."),
    ] = None
    attention: Annotated[
        str, _TECHNIQUE("--attention", help="How attention is computed: name:option=value,...")
    ] = "exact"
    softmax: Annotated[
        str, _TECHNIQUE("--softmax", help="How scores become weights: exact, exaq:bits=2, ...")
    ] = "exact"
    calibration: Annotated[
        str | None,
        _TECHNIQUE("--calibration", help="What `suffice calibrate` wrote about the model."),
    ] = None
    policy: Annotated[str, _TECHNIQUE("--policy", help="Which cached tokens are eligible.")] = (
        "full"
    )
    audit: Annotated[
        int | None,
        _TECHNIQUE(
            "--audit",
            help="Every N decode steps, find out what is left out, by exact attention beside.",
            **WHOLE,
        ),
    ] = None
    growth: Annotated[
        str, _TECHNIQUE("--growth", "--cache", help="How the cache grows: bmc, step:rows=256, ...")
    ] = "bmc"
    speculate: Annotated[
        str | None,
        _TECHNIQUE(
            "--speculate",
            "--speculative-config",
            help='Who guesses tokens: a name, or JSON such as {"method": "ngram"}.',
        ),
    ] = None

    def load(self, seed: int | None = None) -> LLM:
        """Build the engine.

        Raises:
            InputError: A model or an option that cannot be used.
        """
        options: dict[str, Any] = {
            "tokenizer": self.tokenizer,
            "dtype": self.dtype,
            "quantization": self.quant,
            "kv_cache_dtype": self._kv_dtype(),
            "max_model_len": self.ctx_size,
            "threads": self.threads,
            "attention": self.attention,
            "softmax": self.softmax,
            "calibration": self.calibration,
            "policy": self.policy,
            "growth": self.growth,
            "speculative_config": speculation(self.speculate),
            "kv_cache_bytes": self.kv_cache_bytes,
            "audit": self.audit,
            "seed": seed,
        }
        from suffice.engine.config import Config

        # What can be refused without torch is refused before it is loaded.
        Config.create(self.model, **options)
        resolve(self.model)
        from suffice.engine.llm import LLM

        return LLM(self.model, **options)

    def check_drafts(self, command: str) -> None:
        """Require that nobody guesses tokens, for a command to which they are all given.

        Raises:
            InputError: A speculator is asked for.
        """
        from suffice.engine.config import Config

        config = Config.create(self.model, speculative_config=speculation(self.speculate))
        if config.speculate.num_speculative_tokens:
            raise InputError(
                f"--speculate={self.speculate}: {command} decodes tokens that are given, so there "
                "is nothing to guess: leave it out; run, chat, eval speed and eval ruler generate"
            )

    def exact(self) -> ModelFlags:
        """Return the flags of the same model with nothing left out of its arithmetic."""
        return dataclasses.replace(
            self,
            quant=None,
            attention="exact",
            softmax="exact",
            calibration=None,
            audit=None,
            policy="full",
            speculate=None,
            kv_cache_dtype=None,
            cache_type_k=None,
            cache_type_v=None,
        )

    def _kv_dtype(self) -> str:
        flags = {
            "--kv-cache-dtype": self.kv_cache_dtype,
            "-ctk": self.cache_type_k,
            "-ctv": self.cache_type_v,
        }
        given = {name: kv_dtype(name, text) for name, text in flags.items() if text}
        if "--kv-cache-dtype" in given and len(set(given.values())) > 1:
            named = ", ".join(f"{name} {flags[name]}" for name in given)
            raise InputError(f"{named}: contradict each other; give -ctk and -ctv alone")
        return "/".join(dict.fromkeys(given.values())) or "auto"


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen and when the text ends."""

    n_predict: Annotated[
        int,
        _SAMPLING(
            "-n",
            "--n-predict",
            "--max-tokens",
            help="Most new tokens; -1: what the context holds.",
            **WHOLE,
        ),
    ] = 512
    min_tokens: Annotated[int, _SAMPLING("--min-tokens", help="Fewest new tokens.", **WHOLE)] = 0
    temp: Annotated[
        float, _SAMPLING("--temp", "--temperature", help="0 takes the likeliest token.", **NUMBER)
    ] = 0.8
    top_k: Annotated[
        int, _SAMPLING("--top-k", help="Keep this many likeliest; 0: all.", **WHOLE)
    ] = 40
    top_p: Annotated[
        float, _SAMPLING("--top-p", help="Keep the likeliest up to this probability.", **NUMBER)
    ] = 0.95
    min_p: Annotated[
        float,
        _SAMPLING("--min-p", help="Keep those this fraction as likely as the likeliest.", **NUMBER),
    ] = 0.05
    repeat_penalty: Annotated[
        float,
        _SAMPLING("--repeat-penalty", "--repetition-penalty", help="1 changes nothing.", **NUMBER),
    ] = 1.0
    presence_penalty: Annotated[
        float, _SAMPLING("--presence-penalty", help="For every token used before.", **NUMBER)
    ] = 0.0
    frequency_penalty: Annotated[
        float, _SAMPLING("--frequency-penalty", help="For every use of a token before.", **NUMBER)
    ] = 0.0
    seed: Annotated[
        int | None,
        _SAMPLING(
            "-s", "--seed", help="Same seed, same text; default: another every time.", **WHOLE
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        _SAMPLING("--stop", help="Text that ends the generation; may be given again."),
    ] = None
    ignore_eos: Annotated[
        bool, _SAMPLING("--ignore-eos", help="Go on past the end-of-text token.")
    ] = False

    def params(self) -> SamplingParams:
        """Return the flags as what the engine takes.

        Raises:
            InputError: A value out of range, or two that contradict each other.
        """
        return SamplingParams(
            max_tokens=None if self.n_predict == -1 else self.n_predict,
            min_tokens=self.min_tokens,
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True)
class BenchFlags:
    """What `bench` measures, with llama-bench's names."""

    n_prompt: Annotated[
        str, flag("-p", "--n-prompt", help="Prompt tokens, such as 128,512; 0: none.")
    ] = "512"
    n_gen: Annotated[str, flag("-n", "--n-gen", help="Decoded tokens, such as 16,64; 0: none.")] = (
        "64"
    )
    n_depth: Annotated[str, flag("-d", "--n-depth", help="Cached tokens, such as 0,1024,3000.")] = (
        "0"
    )
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Requests decoded together.", **WHOLE)
    ] = 1
    repetitions: Annotated[int, flag("-r", "--repetitions", help="Runs that count.", **WHOLE)] = 3
    output: Annotated[str, flag("-o", "--output", help="md, csv or json.")] = "md"


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a group of flags by the flags of the group."""
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            groups[parameter.name] = group
            members = inspect.signature(group, eval_str=True).parameters
            parameters += [member.replace(kind=member.KEYWORD_ONLY) for member in members.values()]
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        grouped = {
            name: group(
                **{field.name: values.pop(field.name) for field in dataclasses.fields(group)}
            )
            for name, group in groups.items()
        }
        command(**values, **grouped)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
