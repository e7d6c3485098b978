from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from caches import cache_for
from golden import COUNT, FOLDER, MODELS, NAMES, PROMPTS, model_file, sha256
from suffice.checkpoints.open import open_checkpoint
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.model
MANY, FEW = 120, 12  # tokens of the first prompt, and of the others


@pytest.fixture(scope="module", params=NAMES)
def real(request: pytest.FixtureRequest) -> Any:
    """Return the path of a model's file and its golden tokens."""
    path = model_file(request.param)
    if path is None:
        pytest.skip(f"no model in {MODELS / request.param}: run `suffice pull {request.param}`")
    golden = json.loads((FOLDER / f"golden_{request.param}.json").read_text(encoding="utf-8"))
    assert sha256(path) == golden["sha256"], "the golden tokens are those of another file"
    return path, golden


@pytest.fixture(scope="module")
def decoder(real: tuple[Path, dict[str, Any]]) -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(real[0]), NoQuant("float32"))


def test_greedy_tokens_are_those_of_transformers(
    real: tuple[Path, dict[str, Any]], decoder: TorchDecoder
) -> None:
    _, golden = real
    assert [row["prompt"] for row in golden["rows"]] == PROMPTS
    for number, row in enumerate(golden["rows"]):
        assert len(row["generated"]) == COUNT
        prompt, generated = row["tokens"], row["generated"][: MANY if number == 0 else FEW]
        # Greedy decoding gives these tokens if each is the argmax after its predecessors. One pass
        # checks that; the tests on tiny models show that a pass equals decoding.
        logits = decoder.forward(
            torch.tensor(prompt + generated[:-1]), cache_for(decoder), logits="all"
        )
        assert logits is not None
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == generated, row["prompt"]


def test_token_by_token(real: tuple[Path, dict[str, Any]], decoder: TorchDecoder) -> None:
    _, golden = real
    row, cache, found = golden["rows"][0], cache_for(decoder), []
    logits = decoder.forward(torch.tensor(row["tokens"]), cache)
    for _ in range(4):
        assert logits is not None
        found.append(int(logits.argmax()))
        logits = decoder.forward(torch.tensor(found[-1:]), cache)
    assert found == row["generated"][:4]


def test_prompts_are_tokenised_as_when_the_golden_tokens_were_made(
    real: tuple[Path, dict[str, Any]],
) -> None:
    path, golden = real
    tokenizer = load_tokenizer(path)
    for row in golden["rows"]:
        assert tokenizer.encode(row["prompt"]) == row["tokens"]
        stream = tokenizer.stream(skip_special=False)
        text = "".join(stream.push(token) for token in row["generated"]) + stream.flush()
        assert (
            text
            == tokenizer.decode(row["tokens"] + row["generated"])[
                len(tokenizer.decode(row["tokens"])) :
            ]
        )
