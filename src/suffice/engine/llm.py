"""The Python interface: `LLM`, with vLLM's names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from suffice.engine.config import Config
from suffice.engine.embedded import EmbeddingRequestOutput, embedded, prefixed, result_of
from suffice.engine.inputs import (
    RequestMaker,
    conversation,
    pair,
    pair_adapters,
    split,
    split_talks,
)
from suffice.engine.loop import Loop
from suffice.engine.options import EngineOptions, takes_options
from suffice.engine.protocol import Runner, Tokenizer
from suffice.engine.ranking import ranker
from suffice.engine.reading import Reading
from suffice.engine.request import Request, RequestOutput
from suffice.engine.retained import CachedPrefix
from suffice.engine.rows_identity import disk_prefixes, saved_rows_identity
from suffice.engine.session import Session
from suffice.errors import InputError, SufficeWarning
from suffice.progress import showing
from suffice.sampling_params import SamplingParams
from suffice.speculate.budget import Budget

Message = Mapping[str, Any]


class LLM:
    """A model that generates text for one or many prompts at a time.

    A result depends on its prompt and parameters only, never on the rest of the batch. Several
    threads may call the methods at once; their requests decode together. A request without a seed
    gets one from its number in order of arrival, so give seeds for reproducible results.
    """

    @takes_options(EngineOptions)
    def __init__(self, options: EngineOptions) -> None:
        """Load a model; see `EngineOptions` for the options.

        Raises:
            InputError: An unknown option, a bad value, or a model that cannot be used.
        """
        self._load(Config.built(options))

    @classmethod
    def of(cls, config: Config) -> LLM:
        """Return an LLM for an existing config.

        Raises:
            InputError: A model that cannot be used.
        """
        llm = cls.__new__(cls)
        llm._load(config)
        return llm

    def _load(self, config: Config) -> None:
        from suffice.engine.load import load

        _warn_of_codes(config)
        self._assemble(*load(config))

    @classmethod
    def from_parts(cls, config: Config, runner: Runner, tokenizer: Tokenizer) -> LLM:
        """Return an LLM of existing parts; `config` must be resolved."""
        llm = cls.__new__(cls)
        llm._assemble(config, runner, tokenizer)
        return llm

    def _assemble(self, config: Config, runner: Runner, tokenizer: Tokenizer) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self.config = config
        self.runner = runner
        self.tokenizer = tokenizer
        self.budget = Budget(config.speculative_config)
        self.maker = RequestMaker(config, tokenizer, runner)
        self._rows_identity: Callable[[int, int], dict[str, str]] | None = None
        self.loop = Loop(
            runner,
            tokenizer,
            self.budget,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            step_seconds=None,
            disk=disk_prefixes(config, runner),
        )

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Generate for each prompt and return the results in the order of the prompts.

        `prompts` is a text, a list of token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a
        list of these. `use_tqdm` shows the requests and the tokens of prompts that are done, and
        the tokens so far, if standard error is a terminal. A request that finds no memory waits for
        it; one that does not fit alone ends with finish reason "abort" and a line in `error`. An
        interruption (Ctrl-C) ends all requests, frees their memory and is raised again; use
        `stream` to keep partial results. `adapter` is the name of one of `adapters`, None for none,
        or a list with one for each prompt.

        Raises:
            InputError: A bad prompt, parameter or adapter; nothing has been run.
        """
        parts = split(prompts)
        names = pair_adapters(len(parts), adapter)
        triples = zip(parts, pair(len(parts), sampling_params), names, strict=True)
        with self.loop.lock.turn():
            requests = [
                self.maker.make(prompt, params, adapter=self.maker.adapter(name))
                for prompt, params, name in triples
            ]
        return self._run(requests, use_tqdm)

    def score(
        self,
        prompts: Any,
        use_tqdm: bool = True,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[list[float]]:
        """Return, for each prompt, the log probability of each of its tokens but the first.

        Their sum is the log likelihood of a text after its first token; the last n are those of a
        continuation of n tokens. Nothing is generated. For the arguments see `generate`; more than
        this has `SamplingParams.prompt_logprobs`.

        Raises:
            InputError: A bad prompt or adapter, or one that could not be scored.
        """
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        found = []
        for output in self.generate(prompts, params, use_tqdm, adapter=adapter):
            if output.prompt_logprobs is None:
                raise InputError(output.error or "the prompt was not run to its end")
            pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
            found.append([entry[token].logprob for token, entry in pairs if entry is not None])
        return found

    def embed(
        self,
        prompts: Any,
        use_tqdm: bool = True,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return the embedding of each prompt, as the model's files say how it embeds.

        Files that say nothing: the last token's state, normalized. `dimensions` keeps the first
        entries, `normalize` overrides the model's own. `prompt_name` names the text that a model's
        files have for queries, documents or tasks, which stands before each prompt; None is the
        model's usual one, and prompts of token ids get none. For the rest see `generate`.

        Raises:
            InputError: A bad prompt or option, or one that could not be embedded.
        """
        parts = prefixed(self.maker.pooling, split(prompts), prompt_name)
        reading = Reading((), dimensions, normalize)
        return list(map(embedded, self._read(parts, reading, use_tqdm, adapter)))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        use_tqdm: bool = True,
        *,
        instruction: str | None = None,
        adapter: str | None = None,
    ) -> list[float]:
        """Return how relevant each document is to a query.

        A model whose files say that it embeds gives cosines of embeddings, others the probability
        that they answer yes; `instruction` says what counts as relevant (see `engine.ranking`).

        Raises:
            InputError: A bad text, or the model cannot rank.
        """
        if isinstance(documents, str) or not all(isinstance(each, str) for each in documents):
            raise InputError("documents: must be a list of texts")
        way = ranker(self.tokenizer, self.maker.pooling, instruction)
        with self.loop.lock.turn():
            prompts: list[Any] = [
                self.tokenizer.encode(text, special=way.special)
                for text in way.prompts(query, list(documents))
            ]
        found = self._read(prompts, way.reading, use_tqdm, adapter) if documents else []
        return way.scores(list(map(result_of, found)))

    def _read(
        self, prompts: list[Any], reading: Reading, progress: bool, adapter: Any
    ) -> list[Request]:
        """Return the requests that have read what is asked for off each prompt, ended.

        Raises:
            InputError: A bad prompt or option; nothing has been run.
        """
        names = pair_adapters(len(prompts), adapter)
        with self.loop.lock.turn():
            requests = [
                self.maker.make(
                    prompt, SamplingParams(), reading=reading, adapter=self.maker.adapter(name)
                )
                for prompt, name in zip(prompts, names, strict=True)
            ]
        self._run(requests, progress)
        return requests

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Generate the next message of a conversation, or of each conversation in a list.

        A message is {"role": ..., "content": ...}; a content is a text, or a list of parts
        {"type": "text", "text": ...}. `chat_template_kwargs` are what else the model's template may
        ask for by name, such as `enable_thinking`. For the rest see `generate`.

        Raises:
            InputError: A message of another form, or a bad parameter; nothing has been run.
        """
        talks = split_talks(messages)
        prompts = [
            self.chat_tokens(talk, add_generation_prompt, chat_template_kwargs) for talk in talks
        ]
        return self.generate(prompts, sampling_params, use_tqdm, adapter=adapter)

    def stream(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
    ) -> Generator[tuple[str, RequestOutput], None, None]:
        """Generate for one prompt; yield the new text and the result so far after every step.

        Text that may become part of a stop string is held back. Leaving the loop early, by an
        interruption or otherwise, ends the request and frees its memory.

        Raises:
            InputError: A bad prompt or parameter, or n > 1; raised by the call itself.
        """
        return self._stream(self._one(prompt, sampling_params, None, adapter))

    def session(self, adapter: str | None = None) -> Session:
        """Return a session, which keeps its cache from one request to the next.

        Raises:
            InputError: The policy evicts tokens that the next request may build on, or there is no
                adapter of that name.
        """
        self.config.check_session()
        self.maker.adapter(adapter)
        return Session(self, adapter)

    def save_prefix(
        self, prompt: Any, path: str | os.PathLike[str], *, adapter: str | None = None
    ) -> int:
        """Run a prompt and write its keys and values to a file; return how many tokens it has.

        Raises:
            InputError: A bad prompt, or see `Session.save`.
        """
        with self.session(adapter) as session:
            session.check_save(path)
            for _ in session.stream(prompt, SamplingParams(max_tokens=1)):
                pass  # the token is not run
            return session.save(path)

    def load_prefix(self, path: str | os.PathLike[str], *, adapter: str | None = None) -> Session:
        """Return a session that goes on with what `save_prefix` or `Session.save` wrote.

        Raises:
            InputError: See `Session.load`.
        """
        session = self.session(adapter)
        session.load(path)
        return session

    def rows_depend_on(self, adapter: str | None, technique: int = 0) -> dict[str, str]:
        """Return all that the bits of rows of keys and values depend on, besides the tokens.

        Raises:
            InputError: There is no such adapter, or see `saved_rows_identity`.
        """
        if self._rows_identity is None:
            self._rows_identity = saved_rows_identity(self.config, self.runner)
        return self._rows_identity(technique, self.maker.adapter(adapter))

    def _one(
        self,
        prompt: Any,
        params: SamplingParams | None,
        kept: CachedPrefix | None,
        adapter: str | None = None,
    ) -> Request:
        parts = split(prompt)
        if len(parts) != 1:
            raise InputError(f"stream: takes one prompt, {len(parts)} given")
        (chosen,) = pair(1, params)
        if chosen.n != 1:
            raise InputError(f"n={chosen.n}: must be 1 when the text is streamed")
        with self.loop.lock.turn():
            return self.maker.make(parts[0], chosen, kept, adapter=self.maker.adapter(adapter))

    def chat_text(
        self,
        messages: Any,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text by the model's chat template.

        Raises:
            InputError: A message of another form, or one that the template refuses.
        """
        talk = conversation(messages)
        with self.loop.lock.turn():
            return self.tokenizer.chat_text(
                talk, add_generation_prompt=add_generation_prompt, facts=chat_template_kwargs
            )

    def chat_tokens(
        self,
        messages: Any,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return a conversation's tokens; see `chat_text`."""
        text = self.chat_text(messages, add_generation_prompt, chat_template_kwargs)
        with self.loop.lock.turn():
            return self.tokenizer.encode(text, special=False)

    def _run(self, requests: list[Request], progress: bool) -> list[RequestOutput]:
        for request in requests:
            self.loop.add(request)
        try:
            with showing(requests, shown=progress) as update:
                while not all(request.finished for request in requests):
                    self.loop.step()
                    update()
        finally:
            for request in requests:
                self.loop.abort(request)
        return [request.output() for request in requests]

    def _stream(self, request: Request) -> Generator[tuple[str, RequestOutput], None, None]:
        (sample,) = request.samples
        self.loop.add(request)
        try:
            done = False
            while not done:
                with self.loop.lock.turn():
                    # Another caller's step may have finished it since the last token.
                    if not request.finished:
                        self.loop.step()
                    done = request.finished
                    piece = sample.take_delta(), request.output()
                yield piece
        finally:
            self.loop.abort(request)


def _warn_of_codes(config: Config) -> None:
    """Warn of codebook-quantized weights without a calibration: they lose much quality."""
    quant = config.quantization
    if quant is not None and quant.coded_bits is not None:
        warnings.warn(
            f"{quant.coded_bits}-bit codes chosen without a calibration text lose much quality: "
            "int8 and 4bit lose little, `suffice quantize` makes calibrated files, and "
            "`suffice eval perplexity --against exact` measures it",
            SufficeWarning,
            stacklevel=5,
        )
