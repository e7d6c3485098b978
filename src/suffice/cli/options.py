"""The flags that several commands share, in groups: dataclasses; see `suffice.cli.flags`."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from suffice.cli.flags import NUMBER, WHOLE, EngineFlags, flag, plain
from suffice.engine.option_values import kv_names, speculator
from suffice.engine.options import EngineOptions, Flag, options
from suffice.errors import InputError
from suffice.pull import resolve
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from suffice.engine.config import Config
    from suffice.engine.llm import LLM


LONGEST = 200  # characters of a value that an error repeats


def speculation(text: Any) -> Any:
    """Return a speculator's name, or vLLM's configuration parsed from JSON.

    Raises:
        InputError: The text begins like JSON but is invalid, or is no object.
    """
    if not isinstance(text, str) or not text.lstrip().startswith(("{", "[")):
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


# Fields of `SamplingFlags` whose option of `SamplingParams` has another name.
SAMPLING_NAMES = {
    "n_predict": "max_tokens",
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
}
_MODEL = functools.partial(flag, panel="Model")
_SAMPLING = functools.partial(flag, panel="Sampling")


def _nothing_given() -> EngineOptions:
    return EngineOptions(
        **{
            name: plain(declared, option.flag)
            for name, (declared, option) in options().items()
            if option.flag is not None
        }
    )


def long(own: Flag) -> str:
    """Return a flag's first long name."""
    return next(name for name in own.names if name.startswith("--"))


def _inexact() -> Iterator[tuple[str, dataclasses.Field[Any], Flag]]:
    """Yield the options that change results: name, field and flag."""
    for name, (declared, option) in options().items():
        if option.inexact and option.flag is not None:
            yield name, declared, option.flag


@dataclass(frozen=True)
class SourceFlags:
    """The model, and the number of threads."""

    options: Annotated[EngineOptions, EngineFlags("model", "tokenizer", "threads")] = field(
        default_factory=_nothing_given
    )

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.options.model)


@dataclass(frozen=True)
class ModelFlags(SourceFlags):
    """The model, the storage of its weights and cache, and the techniques that run it.

    `cache_type_k` and `cache_type_v` are llama.cpp's names for the types of `--kv-cache-dtype`.
    """

    options: Annotated[EngineOptions, EngineFlags()] = field(default_factory=_nothing_given)
    cache_type_k: Annotated[
        str | None,
        _MODEL("-ctk", "--cache-type-k", help="Type of cached keys; without -ctv also of values."),
    ] = None
    cache_type_v: Annotated[
        str | None,
        _MODEL("-ctv", "--cache-type-v", help="Type of cached values; without -ctk also of keys."),
    ] = None

    def load(self, seed: int | None = None) -> LLM:
        """Build the engine.

        Raises:
            InputError: A model or an option that cannot be used.
        """
        # Bad options and unknown models are refused before a model is loaded.
        config = self.config(seed)
        resolve(self.model)
        if config.quantization is not None and config.quantization.coded_bits is not None:
            print(
                f"quantizing the weights by {self.options.quantization}, which can take minutes; "
                "a file of `suffice quantize` is ready to run",
                file=sys.stderr,
                flush=True,
            )
        from suffice.engine.llm import LLM

        return LLM.of(config)

    def config(self, seed: int | None = None) -> Config:
        """Return the engine's configuration.

        Raises:
            InputError: A bad value, or contradictory options.
        """
        from suffice.engine.config import Config

        given = dataclasses.replace(
            self.options,
            kv_cache_dtype=self.cache_dtype(),
            speculative_config=speculation(self.options.speculative_config),
            seed=seed,
        )
        return Config.built(given)

    def check_drafts(self, command: str) -> None:
        """Require that there is no speculator, for a command that decodes given tokens.

        Raises:
            InputError: A speculator is given.
        """
        given = self.options.speculative_config
        if speculator("speculative_config", speculation(given)).num_speculative_tokens:
            raise InputError(
                f"--speculate={given}: {command} decodes given tokens, so there is nothing to "
                "draft: leave it out; run, chat, eval latency, longbench and ruler generate"
            )

    def check_audit(self, reason: str) -> None:
        """Require that no audits are asked for, for a command that does not show them.

        Raises:
            InputError: They are; `reason` says why the command has none.
        """
        if (given := self.options.audit) is not None:
            raise InputError(
                f"--audit={given}: {reason}: leave it out; run, chat and the accuracies of eval "
                "have audits"
            )

    def exact(self) -> ModelFlags:
        """Return the flags of the same model with exact arithmetic."""
        exact = {name: plain(field, own) for name, field, own in _inexact()}
        return dataclasses.replace(
            self,
            options=dataclasses.replace(self.options, **exact),
            cache_type_k=None,
            cache_type_v=None,
        )

    def inexact(self) -> dict[str, Any]:
        """Return the flags that ask for inexact arithmetic, with their values."""
        named = {
            long(own): getattr(self.options, name)
            for name, field, own in _inexact()
            if getattr(self.options, name) != plain(field, own)
        }
        types = {"--cache-type-k": self.cache_type_k, "--cache-type-v": self.cache_type_v}
        return named | {name: given for name, given in types.items() if given is not None}

    def cache_dtype(self) -> str:
        """Return the types of keys and values that the flags ask for; "auto" without any.

        Raises:
            InputError: The flags contradict each other.
        """
        flags = {
            "--kv-cache-dtype": self.options.kv_cache_dtype,
            "-ctk": self.cache_type_k,
            "-ctv": self.cache_type_v,
        }
        given = {name: kv_names(name, text) for name, text in flags.items() if text}
        if "--kv-cache-dtype" in given and len(set(given.values())) > 1:
            named = ", ".join(f"{name} {flags[name]}" for name in given)
            raise InputError(f"{named}: contradict each other; give -ctk and -ctv alone")
        return "/".join(dict.fromkeys(given.values())) or "auto"


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are sampled and when the text ends."""

    n_predict: Annotated[
        int,
        _SAMPLING(
            "-n",
            "--n-predict",
            "--max-tokens",
            help="Maximum number of new tokens; -1: until the context is full.",
            **WHOLE,
        ),
    ] = 512
    min_tokens: Annotated[
        int, _SAMPLING("--min-tokens", help="Minimum number of new tokens.", **WHOLE)
    ] = 0
    temp: Annotated[
        float,
        _SAMPLING("--temp", "--temperature", help="Temperature; 0: greedy decoding.", **NUMBER),
    ] = 0.8
    top_k: Annotated[
        int, _SAMPLING("--top-k", help="Sample from the N most likely tokens; 0: all.", **WHOLE)
    ] = 40
    top_p: Annotated[
        float,
        _SAMPLING(
            "--top-p",
            help="Sample from the most likely tokens that together reach this probability.",
            **NUMBER,
        ),
    ] = 0.95
    min_p: Annotated[
        float,
        _SAMPLING(
            "--min-p",
            help="Smallest probability of a sampled token, as a fraction of the largest.",
            **NUMBER,
        ),
    ] = 0.05
    repeat_penalty: Annotated[
        float,
        _SAMPLING(
            "--repeat-penalty",
            "--repetition-penalty",
            help="Penalty on the logits of earlier tokens; 1: none.",
            **NUMBER,
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        _SAMPLING(
            "--presence-penalty",
            help="Subtracted from the logit of each generated token.",
            **NUMBER,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _SAMPLING(
            "--frequency-penalty",
            help="Subtracted from a token's logit for each time it was generated.",
            **NUMBER,
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        _SAMPLING(
            "-s", "--seed", help="Same seed, same text; default: different every time.", **WHOLE
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        _SAMPLING("--stop", help="Text that ends the generation; may be repeated.", metavar="TEXT"),
    ] = None
    ignore_eos: Annotated[
        bool, _SAMPLING("--ignore-eos", help="Continue past the end-of-sequence token.")
    ] = False

    def params(self) -> SamplingParams:
        """Return the engine's sampling parameters.

        Raises:
            InputError: A value out of range, or contradictory values.
        """
        given = {SAMPLING_NAMES.get(name, name): value for name, value in vars(self).items()}
        if self.n_predict == -1:
            given["max_tokens"] = None
        return SamplingParams(**given)


@dataclass(frozen=True)
class BenchFlags:
    """The cases that `bench` measures, with llama-bench's names."""

    n_prompt: Annotated[
        str, flag("-p", "--n-prompt", help="Lengths of prompts, such as 128,512; 0: none.")
    ] = "512"
    n_gen: Annotated[
        str, flag("-n", "--n-gen", help="Numbers of decoded tokens, such as 16,64; 0: none.")
    ] = "64"
    n_depth: Annotated[
        str, flag("-d", "--n-depth", help="Tokens cached before a run, such as 0,1024,3000.")
    ] = "0"
    batch_size: Annotated[
        int, flag("-b", "--batch-size", help="Requests decoded together.", **WHOLE)
    ] = 1
    repetitions: Annotated[
        int, flag("-r", "--repetitions", help="Timed runs of a case.", **WHOLE)
    ] = 3
    output: Annotated[str, flag("-o", "--output", help="Format: md, csv or json.")] = "md"
