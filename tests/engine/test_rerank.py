"""Ranks by yes and no in their published forms, and by embeddings. Tests ranking.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import embedders
import hf_reference
import tiny
from engines import run, sharing
from suffice import SamplingParams
from suffice.engine.ranking import INSTRUCTION, cosine
from suffice.engine.reading import Reading
from suffice.errors import InputError

load = sharing(threads=1, dtype="float32", kv_cache_dtype="float32")


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedders.judge(tmp_path_factory.mktemp("judge"))


def asked(query: str, document: str, instruction: str = INSTRUCTION) -> str:
    """Qwen3-Reranker's form, written out."""
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        f"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_reranker_says_yes_or_no(judges: Path) -> None:
    llm = load(judges)
    documents = ["the quick brown fox", "lazy dog", ""]
    yes, no = (llm.tokenizer.encode(word)[0] for word in ("yes", "no"))
    for instruction in (None, "Find dogs"):
        found = llm.rerank("fox?", documents, use_tqdm=False, instruction=instruction)
        for score, document in zip(found, documents, strict=True):
            text = asked("fox?", document, instruction or INSTRUCTION)
            tokens = tuple(llm.tokenizer.encode(text, special=False))
            logits = hf_reference.exact_and_single(judges, tokens)[0][-1]
            wanted = torch.softmax(logits[[yes, no]], 0)[0].item()
            assert score == pytest.approx(wanted, abs=1e-5)
    assert llm.rerank("fox?", []) == []
    for wrong in ("a document", ["a", 3]):
        with pytest.raises(InputError, match="documents: must be a list of texts"):
            llm.rerank("fox?", wrong)


def test_other_forms_of_a_reranker(tmp_path: Path) -> None:
    """One whose files name the tokens and whose template has roles, and a chat model's."""
    folder = embedders.judge(tmp_path / "roles")
    template = (
        "{% for m in messages %}{% if m['role'] == \"query\" %}Q {{ m['content'] }}"
        "{% elif m['role'] == \"document\" %} D {{ m['content'] }}{% else %}{{ m['content'] }} "
        "{% endif %}{% endfor %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    embedders.write(folder / "modules.json", [{"type": "a.LogitScore", "path": "1_Score"}])
    embedders.write(folder / "1_Score/config.json", {"true_token_id": 7, "false_token_id": 9})
    llm = load(folder)

    def of(text: str, *pair: int) -> float:
        request = llm.maker.make(
            llm.tokenizer.encode(text, special=False), SamplingParams(), reading=Reading(pair)
        )
        run(llm, [request])
        assert request.reader is not None and request.reader.result is not None
        logs = request.reader.result.astype(np.float64)
        return float(np.exp(logs[0]) / np.exp(logs).sum())

    assert llm.rerank("a", ["b"]) == [pytest.approx(of("Q a D b", 7, 9), rel=1e-6)]
    assert llm.rerank("a", ["b"], instruction="I") == [
        pytest.approx(of("I Q a D b", 7, 9), rel=1e-6)
    ]
    llm = load(embedders.judge(tmp_path / "plain", chatml=False))
    words = [llm.tokenizer.encode(word)[0] for word in ("yes", "no")]
    text = asked("a", "b").partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    judge = asked("a", "b").partition("system\n")[2].partition("<|im_end|>")[0]
    whole = f"<|user|>{judge}\n\n{text}<|end|><|assistant|>"
    assert llm.rerank("a", ["b"]) == [pytest.approx(of(whole, *words), rel=1e-6)]


def test_models_that_cannot_rank(tmp_path: Path) -> None:
    llm = load(tiny.make(tmp_path / "words", "llama", tokenizer=True))
    with pytest.raises(InputError, match="cannot rank: 'yes' and 'no' are no tokens of it"):
        llm.rerank("a", ["b"])
    folder = embedders.judge(tmp_path / "judge", chatml=False)
    embedders.changed(folder, "tokenizer_config.json", chat_template=None)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(InputError, match="cannot rank: it has no chat template to ask it by"):
        load(folder).rerank("a", ["b"])


def test_an_embedding_model_ranks_by_cosines(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "llama", tokenizer=True)
    llm = load(embedders.write_modules(folder, {"pooling_mode": "mean"}))

    def vectors(texts: list[str], name: str) -> list[np.ndarray]:
        found = llm.embed(texts, use_tqdm=False, prompt_name=name)
        return [np.array(each.outputs.embedding) for each in found]

    documents = ["the quick brown fox", "To be, or not to be, that is the question."]
    found = llm.rerank("jumps", documents, use_tqdm=False)
    (query,) = vectors(["jumps"], "query")
    others = vectors(documents, "document")
    assert found == [pytest.approx(float(query @ other), abs=1e-6) for other in others]
    (own,) = llm.rerank("jumps", ["Find: jumps"], use_tqdm=False, instruction="Find: ")
    assert own == pytest.approx(1, abs=1e-6)
    assert cosine(np.zeros(2), np.ones(2)) == 0
