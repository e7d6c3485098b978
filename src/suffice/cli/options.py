"""The flags that several commands share, in groups: dataclasses; see `suffice.cli.flags`."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from suffice.cli.flags import engine_flags, flag
from suffice.engine.option_values import kv_names, speculator
from suffice.engine.options import EngineOptions, Option, options
from suffice.errors import InputError
from suffice.flags import Flag
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


def _inexact() -> Iterator[tuple[str, Option, Flag]]:
    """Yield the options that change results: name, declaration and flag."""
    for name, (_, option) in options().items():
        if option.inexact and option.flag is not None:
            yield name, option, option.flag


@dataclass(frozen=True)
class SourceFlags:
    """The model, and the number of threads."""

    options: EngineOptions = engine_flags("model", "tokenizer", "threads")

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.options.model)


@dataclass(frozen=True)
class ModelFlags(SourceFlags):
    """The model, the storage of its weights and cache, and the techniques that run it.

    `cache_type_k` and `cache_type_v` are llama.cpp's names for the types of `--kv-cache-dtype`.
    """

    options: EngineOptions = engine_flags()
    cache_type_k: str | None = _MODEL(
        None, "-ctk --cache-type-k", "Type of cached keys; without -ctv also of values."
    )
    cache_type_v: str | None = _MODEL(
        None, "-ctv --cache-type-v", "Type of cached values; without -ctk also of keys."
    )

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
        exact = {name: option.plain for name, option, _ in _inexact()}
        return dataclasses.replace(
            self,
            options=dataclasses.replace(self.options, **exact),
            cache_type_k=None,
            cache_type_v=None,
        )

    def inexact(self) -> dict[str, Any]:
        """Return the flags that ask for inexact arithmetic, with their values."""
        named = {
            own.long: getattr(self.options, name)
            for name, option, own in _inexact()
            if getattr(self.options, name) != option.plain
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

    n_predict: int = _SAMPLING(
        512,
        "-n --n-predict --max-tokens",
        "Maximum number of new tokens; -1: until the context is full.",
    )
    min_tokens: int = _SAMPLING(0, "--min-tokens", "Minimum number of new tokens.")
    temp: float = _SAMPLING(0.8, "--temp --temperature", "Temperature; 0: greedy decoding.")
    top_k: int = _SAMPLING(40, "--top-k", "Sample from the N most likely tokens; 0: all.")
    top_p: float = _SAMPLING(
        0.95, "--top-p", "Sample from the most likely tokens that together reach this probability."
    )
    min_p: float = _SAMPLING(
        0.05, "--min-p", "Smallest probability of a sampled token, as a fraction of the largest."
    )
    repeat_penalty: float = _SAMPLING(
        1.0,
        "--repeat-penalty --repetition-penalty",
        "Penalty on the logits of earlier tokens; 1: none.",
    )
    presence_penalty: float = _SAMPLING(
        0.0, "--presence-penalty", "Subtracted from the logit of each generated token."
    )
    frequency_penalty: float = _SAMPLING(
        0.0,
        "--frequency-penalty",
        "Subtracted from a token's logit for each time it was generated.",
    )
    seed: int | None = _SAMPLING(
        None, "-s --seed", "Same seed, same text; default: different every time."
    )
    stop: list[str] | None = _SAMPLING(
        None, "--stop", "Text that ends the generation; may be repeated.", metavar="TEXT"
    )
    ignore_eos: bool = _SAMPLING(False, "--ignore-eos", "Continue past the end-of-sequence token.")

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

    n_prompt: str = flag("512", "-p --n-prompt", "Lengths of prompts, such as 128,512; 0: none.")
    n_gen: str = flag("64", "-n --n-gen", "Numbers of decoded tokens, such as 16,64; 0: none.")
    n_depth: str = flag("0", "-d --n-depth", "Tokens cached before a run, such as 0,1024,3000.")
    batch_size: int = flag(1, "-b --batch-size", "Requests decoded together.")
    repetitions: int = flag(3, "-r --repetitions", "Timed runs of a case.")
    output: str = flag("md", "-o --output", "Format: md, csv or json.")
