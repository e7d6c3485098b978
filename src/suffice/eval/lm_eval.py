"""suffice as a model of lm-evaluation-harness, which provides the tasks and the scores.

    python -m suffice.eval.lm_eval --model suffice --model_args pretrained=smollm2-135m --tasks piqa

is the harness's command `lm_eval` with this model added. (The harness has no entry point for
external models, so its own command does not know this one.) A program imports this module and then
calls `lm_eval.simple_evaluate(model="suffice", ...)`.

Model arguments are those of `suffice.LLM`, with `pretrained` for the model, and `mode` (see
`suffice.eval.likelihood`). A value with commas is quoted: attention="name:one=1,two=2".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ModuleNotFoundError as error:
    if error.name != "lm_eval":
        raise
    raise ModuleNotFoundError(
        "lm-evaluation-harness is not installed: install suffice[eval]", name="lm_eval"
    ) from None

from suffice.engine.llm import LLM
from suffice.errors import InputError, unknown
from suffice.eval.likelihood import (
    LikelihoodPlan,
    Pair,
    context_length,
    encode,
    fitted,
    prefix_token,
    score,
)
from suffice.eval.modes import check_mode
from suffice.progress import progress_bar
from suffice.sampling_params import SamplingParams

TRANSLATED = ("do_sample", "until", "max_gen_toks")
# Generation options that a task may set in addition; their names are the same here
SAMPLING = tuple(
    field.name
    for field in fields(SamplingParams)
    if field.name not in ("n", "stop", "max_tokens", "logprobs", "prompt_logprobs")
)


@register_model("suffice")
class SufficeLM(TemplateLM):  # type: ignore[misc]
    """A suffice model for lm-evaluation-harness; `batch_size` requests run together."""

    def __init__(
        self,
        pretrained: str,
        *,
        batch_size: int | str = 8,
        mode: str = "decode",
        max_gen_toks: int = 256,
        device: str | None = None,
        **options: Any,
    ) -> None:
        """Load a model; `options` are those of `suffice.LLM`.

        `device` is ignored: the harness passes cuda:0 by default, but suffice runs on the CPU.

        Raises:
            InputError: An option is unknown, a value is bad, or the model cannot be used.
        """
        super().__init__()
        if not str(batch_size).isdecimal():
            raise InputError(f"batch_size={batch_size}: must be a whole number of at least 1")
        self.batch_size = int(batch_size)
        self.max_gen_toks = max_gen_toks
        self._plan = LikelihoodPlan(mode, self.batch_size)
        self._llm = LLM(pretrained, max_num_seqs=self.batch_size, **options)
        self.tokenizer = self._llm.tokenizer
        self.max_length = context_length(self._llm)

    @property
    def eot_token_id(self) -> int | None:
        """The token that ends a text."""
        return self.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The token used as an empty context."""
        return prefix_token(self.tokenizer)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name, part of the harness's key for stored requests."""
        config = self._llm.config
        return PurePath(config.tokenizer or config.model).name

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as text, by the model's chat template.

        Raises:
            InputError: The model has no template.
        """
        if not self.tokenizer.has_chat_template:
            raise InputError("the model has no chat template: leave --apply_chat_template out")
        return self.tokenizer.chat_text(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_last=not add_generation_prompt,
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Return the tokens of a text."""
        if add_special_tokens is None:
            return encode(self.tokenizer, string)
        return self.tokenizer.encode(string, special=add_special_tokens)

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """Score requests: (texts, tokens of the context, tokens of the continuation).

        Raises:
            InputError: Prompts would score them, to which a technique does not apply.
        """
        check_mode(self._plan.mode, self._llm.config)
        pairs = [fitted(Pair(*tokens), self.max_length) for _, *tokens in requests]
        found: dict[int, tuple[float, bool]] = {}
        with progress_bar(shown=not disable_tqdm) as bar:
            for index, likelihood in bar.track(
                score(self._llm.runner, pairs, self._plan), len(pairs), description="likelihood"
            ):
                found[index] = likelihood.log, likelihood.greedy
                if (texts := requests[index][0]) is not None:
                    self.cache_hook.add_partial("loglikelihood", texts, found[index])
        return [found[index] for index in range(len(pairs))]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log likelihood of each whole text, computed in disjoint windows."""
        texts = [request.args[0] for request in requests]
        windows = [self._windows(text) for text in texts]
        flat = [(None, *window) for each in windows for window in each]
        logs = iter(self._loglikelihood_tokens(flat, disable_tqdm))
        totals = [sum(next(logs)[0] for _ in each) for each in windows]
        for text, total in zip(texts, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return totals

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, self.max_length, context_len=1
        )
        return [make_disjoint_window(window) for window in windows]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate a text for each request, which is a prompt with generation options."""
        asked = [sampling(request.args[1], self.max_gen_toks) for request in requests]
        prompts = [
            {"prompt_token_ids": self._prompt(request.args[0], params)}
            for request, params in zip(requests, asked, strict=True)
        ]
        outputs = self._llm.generate(prompts, asked, use_tqdm=not disable_tqdm)
        texts = []
        for request, output, params in zip(requests, outputs, asked, strict=True):
            if output.error:
                raise InputError(output.error)
            text = postprocess_generated_text(output.outputs[0].text, list(params.stops), None)
            self.cache_hook.add_partial("generate_until", request.args, text)
            texts.append(text)
        return texts

    def _prompt(self, text: str, params: SamplingParams) -> list[int]:
        """Return a prompt's tokens, truncated from the left to leave room for the answer."""
        room = self.max_length - (params.max_tokens or 0)
        if room < 1:
            raise InputError(
                f"max_gen_toks={params.max_tokens}: must be less than the context length, "
                f"{self.max_length}"
            )
        return self.tok_encode(text)[-room:]


def sampling(options: Mapping[str, Any], max_gen_toks: int) -> SamplingParams:
    """Convert a task's generation options to sampling parameters.

    Generation is greedy unless `do_sample` or a temperature is given.

    Raises:
        InputError: An option is unknown, or `do_sample` comes with a temperature of 0.
    """
    given = dict(normalize_gen_kwargs(dict(options), max_gen_toks))
    sampled = given.pop("do_sample")
    stop = [text for text in given.pop("until") if text]
    limit = given.pop("max_gen_toks")
    for name in given:
        if name not in SAMPLING:
            raise unknown("generation option", name, (*TRANSLATED, *SAMPLING))
    temperature = given.pop("temperature", 1.0)
    if sampled and not temperature:
        raise InputError("do_sample=True with temperature=0: give a temperature above 0")
    return SamplingParams(
        temperature=temperature if sampled else 0.0, max_tokens=limit, stop=stop, **given
    )


def main() -> int:
    """Run lm-evaluation-harness's own command; return the exit code."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except InputError as error:
        print(f"suffice: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
