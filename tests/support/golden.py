"""The tokens that transformers generates greedily with the real models, in float32.

    python tests/support/golden.py

writes `golden_<model>.json` for every model that is there. transformers reads the GGUF file with
its own code (which needs `accelerate`), so that the tokens also vouch for our reading of it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from hf_reference import as_cache, cache_of

FOLDER = Path(__file__).parent
MODELS = Path("~/.cache/suffice/models").expanduser()
NAMES = ("smollm2-135m", "gemma3-270m")
COUNT = 200

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is 17 + 25?\nA: 17 + 25 =",
    "Photosynthesis is the process by which plants",
]


def model_file(name: str) -> Path | None:
    """Return the file of a pulled model, or None."""
    return next(iter(sorted((MODELS / name).glob("*.gguf"))), None)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@torch.no_grad()
def generate(model: Any, tokens: list[int]) -> tuple[list[int], float]:
    """Return the greedy tokens and the smallest lead that one had over the next best."""
    ids, cache = torch.tensor([tokens]), None
    found, lead = [], float("inf")
    for _ in range(COUNT):
        output = model(ids, **as_cache(cache), use_cache=True)
        cache = cache_of(output)
        best = output.logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        found.append(int(best.indices[0]))
        ids = best.indices[:1][None]
    return found, lead


def main() -> None:
    import transformers

    from suffice.text.tokenizer import load_tokenizer

    for name in NAMES:
        path = model_file(name)
        if path is None:
            print(f"{name}: not there")
            continue
        tokenizer = load_tokenizer(path)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        rows = []
        for prompt in PROMPTS:
            tokens = tokenizer.encode(prompt)
            generated, lead = generate(model, tokens)
            rows.append({"prompt": prompt, "tokens": tokens, "generated": generated})
            print(f"{name}: smallest lead {lead:.1e}: {tokenizer.decode(generated)[:60]!r}")
        golden = {"file": path.name, "sha256": sha256(path), "rows": rows}
        golden["transformers"] = transformers.__version__
        text = json.dumps(golden, ensure_ascii=False)
        (FOLDER / f"golden_{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
