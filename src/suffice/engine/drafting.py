"""Draft models for speculators: a second model, or a cheaper setting of the runner's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from suffice.attention import rule_of
from suffice.cache import JOINT_DTYPES, check_rows, types_of
from suffice.checkpoints.formats.quantized_file import Quantized
from suffice.checkpoints.open import open_model
from suffice.decoder.native_model import NativeModel, Omitted
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.engine.assistants import Assistant
from suffice.engine.block_heads import BlockHead
from suffice.engine.config import Config
from suffice.engine.heads import Follower, Head
from suffice.engine.option_values import stored_weights
from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.speculate import DraftSetting
from suffice.speculate.markov import Markov
from suffice.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suffice.checkpoints.draft_heads import OpenedHead
    from suffice.decoder.shelf import Shelf
    from suffice.engine.runner import Runner

_Kind = TypeVar("_Kind", bound=Follower)
_KEEPS_STATES = (
    " has layers that keep states, which cannot be cut back to a token before its drafts; "
    "'ngram' drafts for such a model"
)


# Drafts of 4-bit weights are as often right as those of bfloat16, and take half the time.
_DRAFT_WEIGHTS = "rtn:group=64,act_bits=8"


class DraftModels:
    """Gives speculators access to draft models: a second model, or a setting of the runner's own.

    Drafts are made for `runner`. `load` makes another runner from a config, its weights on `shelf`.
    """

    def __init__(
        self,
        runner: Runner,
        load: Callable[[Config, Shelf], tuple[Config, Runner, Tokenizer]],
        shelf: Shelf,
    ) -> None:
        self._runner = runner
        self._load = load
        self._shelf = shelf

    def second(self, model: str, quantization: str | None, kv_cache_dtype: str) -> Runner:
        """Load another model; its caches count towards the runner's memory limit.

        Raises:
            InputError: The model cannot be used, keeps states, or has another vocabulary.
        """
        mine = self._runner.config
        config = Config.create(
            model,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            growth=mine.growth,
            threads=mine.threads,
        )
        # Checked before the weights are loaded, which takes longer.
        other, own = (load_tokenizer(name) for name in (model, mine.tokenizer or mine.model))
        if other.vocabulary() != own.vocabulary():
            raise InputError(
                f"speculator 'draft_model': {model} has another vocabulary than {mine.model}: "
                "drafts are token ids, so the tokenizers must be the same"
            )
        _, runner, _ = self._load(config, self._shelf)
        if runner.vocabulary != self._runner.vocabulary:
            raise InputError(
                f"speculator 'draft_model': {model} has {runner.vocabulary} token ids: must be "
                f"{self._runner.vocabulary}, as many as {mine.model} has"
            )
        if runner.decoder.config.states:
            raise InputError(f"speculator 'draft_model': {model}{_KEEPS_STATES}")
        runner.arena = self._runner.arena
        return runner

    def head(self, folder: str, quantization: str | None, kv_cache_dtype: str) -> Head:
        """Load a head; its rows of a text are in the text's cache, and count towards its memory.

        Raises:
            InputError: It cannot be used, or is of another model.
        """
        from suffice.checkpoints.draft_heads import open_head

        opened = open_head(folder, self._runner.decoder.config)
        return self._installed("eagle3", opened, Head, quantization, kv_cache_dtype)

    def blocks(
        self, folder: str, drafts: int, quantization: str | None, kv_cache_dtype: str
    ) -> BlockHead:
        """Load a head that drafts blocks of `drafts` tokens; see `head`.

        Raises:
            InputError: It cannot be used, is of another model, or has smaller blocks.
        """
        from suffice.checkpoints.block_heads import markov_weights, open_block_head

        opened = open_block_head(folder, self._runner.decoder.config)
        own = opened.checkpoint.config.drafts
        assert own is not None
        most = own.block if own.ahead else own.block - 1
        if drafts > most:
            raise InputError(
                f"speculator 'dflash': num_speculative_tokens={drafts}: must be at most {most}, "
                f"since {folder} has blocks of {own.block} rows"
            )
        weights = markov_weights(opened)
        markov = None if weights is None else Markov(*weights)
        make = partial(BlockHead, drafts=drafts, markov=markov)
        return self._installed("dflash", opened, make, quantization, kv_cache_dtype)

    def module(self, quantization: str | None, kv_cache_dtype: str) -> Head:
        """Load the module of the model's files that predicts further tokens; see `head`.

        Raises:
            InputError: The files have none, or it cannot be used.
        """
        from suffice.checkpoints.draft_heads import OpenedHead

        model = self._runner.config.model
        opened = open_model(model)
        predictor = None if isinstance(opened, Quantized) else opened.predictor
        if predictor is None:
            raise InputError(
                f"speculator 'mtp': the files of {model} have no module that predicts further "
                "tokens; 'model' names an assistant, and 'suffix' drafts for any model"
            )
        config = self._runner.decoder.config
        after_norm = len(config.layers) + 1
        found = OpenedHead(predictor(), np.arange(config.vocab), (after_norm,))
        return self._installed("mtp", found, Head, quantization, kv_cache_dtype)

    def assistant(self, folder: str, quantization: str | None) -> Assistant:
        """Load an assistant, which reads the caches of texts and has no rows of its own.

        Raises:
            InputError: It cannot be used, or is of another model.
        """
        from suffice.checkpoints.assistants import open_assistant

        runner = self._runner
        opened = open_assistant(folder, runner.decoder.config)
        decoder = self._decoder("mtp", opened, quantization)
        assistant = Assistant(decoder, opened.tokens, opened.layers, runner.context)
        runner.head = assistant
        return assistant

    def _installed(
        self,
        name: str,
        opened: OpenedHead,
        make: Callable[..., _Kind],
        quantization: str | None,
        kv_cache_dtype: str,
    ) -> _Kind:
        runner = self._runner
        dtype = _stored(opened) if kv_cache_dtype == "auto" else kv_cache_dtype
        if not set(types_of(dtype)) <= set(JOINT_DTYPES):
            raise InputError(
                f"speculator '{name}': kv_cache_dtype='{dtype}': must be one of "
                f"{', '.join(JOINT_DTYPES)}, or two of them"
            )
        config = opened.checkpoint.config
        check_rows(config.head_size, config.joint, *types_of(dtype))
        decoder = self._decoder(name, opened, quantization)
        head = make(decoder, opened.tokens, opened.layers, runner.context, dtype)
        runner.head = head
        return head

    def _decoder(self, name: str, opened: OpenedHead, quantization: str | None) -> DecoderWeights:
        """Read the weights of what drafts, with those that it shares with the model."""
        runner, own = self._runner, self._runner.decoder.weights
        if quantization is None:
            coded = any(matrix.coded for matrix in opened.checkpoint.matrices)
            quantization = "file" if coded else _DRAFT_WEIGHTS
        given = QUANTS.build(quantization)
        config = opened.checkpoint.config.fitted(runner.context)
        assert config.drafts is not None
        quant = stored_weights(given, "auto", _stored(opened))
        weights = self._shelf.kept(
            f"{name}: {opened.checkpoint.path} {quant!r}",
            lambda allocate: DecoderWeights.from_checkpoint(
                opened.checkpoint, quant, allocate=allocate
            ),
        ).weights
        tied = {"head": "embed"} if runner.decoder.config.tied else {}
        weights = weights | {each: own[tied.get(each, each)] for each in config.drafts.shared}
        return DecoderWeights(config, weights)

    def under(self, setting: DraftSetting) -> Callable[[list[Any], list[int]], NDArray[np.float32]]:
        """Return a function that runs one more token of each sequence in a cheaper setting.

        It commits the tokens' rows and returns logits float32 [B, V]. The runner's trace does not
        count its reads.

        Raises:
            InputError: The model keeps states, lacks a skipped layer, or would have no layer left;
                its weights cannot be quantized so; or the setting is no cheaper than the model.
        """
        decoder: DecoderWeights = self._runner.decoder
        context = self._runner.config.max_model_len
        model = decoder.config
        assert context is not None
        if model.states:
            raise InputError(f"{self._runner.config.model}{_KEEPS_STATES}")
        _check_skipped(setting.skipped, len(model.layers))
        if setting.quant is not None:
            decoder = _requantized(decoder, setting, self._shelf)
        rules = [[rule_of(setting.attention)] * model.kv_heads for _ in model.cached]
        omitted = Omitted(setting.recent, setting.sinks, setting.skipped)
        native = NativeModel(decoder, context, rules, omitted=omitted)

        def step(sequences: list[Any], tokens: list[int]) -> NDArray[np.float32]:
            batch = [
                StepRows(sequence.cache, [token])
                for sequence, token in zip(sequences, tokens, strict=True)
            ]
            logits = native.step(batch)
            for rows in batch:
                rows.cache.commit([0])
            return logits

        return step


def _stored(opened: OpenedHead) -> str:
    """Return the type of what drafts, and of its keys unless another is given."""
    return "bfloat16" if opened.checkpoint.dtype == "bfloat16" else "float32"


def _check_skipped(skipped: tuple[int, ...], layers: int) -> None:
    if skipped and skipped[-1] >= layers:
        raise InputError(
            f"skip_layers: there is no layer {skipped[-1]}; the model has 0..{layers - 1}"
        )
    if len(skipped) == layers:
        raise InputError(f"skip_layers: leaves none of the model's {layers} layers")


def _requantized(decoder: DecoderWeights, setting: DraftSetting, shelf: Shelf) -> DecoderWeights:
    quant = setting.quant
    assert quant is not None
    try:
        found = shelf.kept(
            f"self: {quant!r}", lambda allocate: decoder.requantized(quant, allocate)
        )
    except InputError as error:
        raise InputError(f"quantization: {error}") from None
    others = setting.recent or setting.skipped or rule_of(setting.attention)
    if found is decoder and not others:
        raise InputError("quantization: saves nothing, and nothing else makes drafts cheaper")
    return found
