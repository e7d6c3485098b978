"""How much of the softmax each technique leaves out, truly: the mean, and the tail that it hides.

    python benchmarks/missing_mass.py --data-dir DIR            SmolLM2 on WikiText-2, minutes
    python benchmarks/missing_mass.py --data-dir DIR --quick    seconds, into build/

A window of text is run once. For tokens spread over its second half the reference of each technique
says, layer by layer, which keys and values it reads; beside the exact softmax of the same queries
that gives the mass of what it did not. A sample is one head of one token. What early termination
has learnt of the tokens before, it has learnt from exact masses.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import record
from settings import parts
from suffice.attention import ATTENTIONS
from suffice.attention.aet import AET, Known
from suffice.cache.kv import KVCache
from suffice.engine.config import Config
from suffice.engine.runner import Runner, load
from suffice.errors import InputError
from suffice.eval.texts import load_text
from suffice.policy import POLICIES, Windows
from suffice.policy.choice import Choice
from suffice.policy.observation import attention_of
from suffice.policy.quest import BLOCK, Quest
from suffice.progress import progress_bar

NAME = "missing_mass"
SETTINGS = (
    "aet:k=0.95",
    "aet:k=0.9",
    "aet:k=0.8",
    "art",
    "art:tau=1e-3",
    "art:tau=1e-2",
    "certified:eps=0.05",
    "certified:bounded=false,eps=0.25,v=0.002",
    "quest:ratio=0.5",
    "quest:ratio=0.2",
)
HEAD = [
    "setting",
    "K read",
    "missing, mean",
    "99.9 %",
    "greatest",
    "over half",
    "of unread V, mean",
]


class Queries(Choice):
    """A policy that leaves nothing out and keeps the queries of a prompt, by layer."""

    def __init__(self) -> None:
        self.found: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> Any:
        """Return what keeps them: this."""
        return self

    def add(self, layer: int, q: torch.Tensor, end: int) -> None:
        """Take queries [H, T, D]; see `Watch`."""
        self.found[layer].append(q.clone())


@dataclasses.dataclass(frozen=True)
class Layer:
    """What a layer's tokens asked, q [H, T, D], of k and v [G, T, D], and the exact softmax of it,
    masses [G, R, T, T].
    """

    index: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    masses: torch.Tensor

    def learnt(self, tokens: list[int]) -> dict[int, list[Known]]:
        """Return what early termination keeps of each key/value head before each of some tokens."""
        technique, found = AET(), {}
        blocks = torch.nn.functional.pad(self.masses.sum(1), (0, -self.masses.shape[-1] % BLOCK))
        shares = blocks.unflatten(-1, (-1, BLOCK)).sum(-1).tolist()
        states = [technique.new_state() for _ in shares]
        for token in range(max(tokens) + 1):
            if token in tokens:
                found[token] = copy.deepcopy(states)
            for state, own in zip(states, shares, strict=True):
                first = technique.always(state, token + 1)
                technique.learn(state, {block: own[token][block] for block in first})
        return found

    def read(self, technique: Any, token: int, states: list[Known]) -> tuple[torch.Tensor, ...]:
        """Return which keys and values a token's groups read, bool [G, token + 1] each."""
        q, rows = self.q[:, token : token + 1], slice(token + 1)
        if isinstance(technique, Quest):
            return self._chosen(technique, q, rows)
        more = {"states": copy.deepcopy(states)} if isinstance(technique, AET) else {}
        found = technique.reference(q, self.k[:, rows], self.v[:, rows], scale=self.scale, **more)
        return found.keys[0], found.values[0]

    def _chosen(self, policy: Quest, q: torch.Tensor, rows: slice) -> tuple[torch.Tensor, ...]:
        read = torch.ones(len(self.k), rows.stop, dtype=torch.bool)
        if self.index >= policy.dense_layers:
            count = policy.tokens(rows.stop) // BLOCK
            for own, keys, seen in zip(q.chunk(len(self.k)), self.k, read, strict=True):
                blocks = policy.select(own[:, 0], keys[rows], count)
                within = torch.tensor(blocks)[:, None] * BLOCK + torch.arange(BLOCK)
                seen[:] = torch.isin(torch.arange(rows.stop), within)
        return read, read


def layers_of(runner: Runner, tokens: list[int]) -> Any:
    """Run a prompt and yield its layers without a sliding window."""
    queries = Queries()
    watching = Runner(dataclasses.replace(runner.config, policy=queries), runner.decoder)
    sequence = watching.open("missing mass", len(tokens))
    watching.prefill(sequence, tokens)
    scale = runner.decoder.config.attention_scale
    for index, window in enumerate(runner.windows):
        if window is None:
            q = torch.cat(queries.found.pop(index), dim=1)
            k, v = sequence.cache.keys(index), sequence.cache.values(index)
            yield Layer(index, q, k, v, scale, attention_of(q, k, scale))
    watching.close(sequence)


def left_out(layer: Layer, token: int, read: torch.Tensor) -> torch.Tensor:
    """Return the mass of what each head of a token does not read, [H]; read is bool [G, S]."""
    masses = layer.masses[:, :, token, : token + 1].double()
    return (masses * ~read[:, None]).sum(-1).flatten()


def measure(runner: Runner, text: list[int], tokens: list[int]) -> dict[str, dict[str, float]]:
    """Return the figures of each setting over all layers, heads and the given tokens."""
    made = {setting: technique_of(setting) for setting in SETTINGS}
    missing: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    dropped: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    rows: defaultdict[str, list[float]] = defaultdict(list)
    with progress_bar("{task.description}", "{task.completed}/{task.total} layers") as bar:
        line = bar.add_task("references", total=runner.windows.count(None))
        for layer in layers_of(runner, text):
            states = layer.learnt(tokens)
            for setting, technique in made.items():
                for token in tokens:
                    keys, values = layer.read(technique, token, states[token])
                    missing[setting].append(left_out(layer, token, keys))
                    dropped[setting].append(left_out(layer, token, values))
                    rows[setting].append(float(keys.float().mean()))
            bar.advance(line)
    return {
        setting: figures(torch.cat(missing[setting]))
        | {"dropped": float(torch.cat(dropped[setting]).mean())}
        | {"keys": sum(rows[setting]) / len(rows[setting])}
        for setting in SETTINGS
    }


def figures(missing: torch.Tensor) -> dict[str, float]:
    """Return the mean and the tail of the mass that samples miss."""
    return {
        "mean": float(missing.mean()),
        "p999": float(missing.quantile(0.999)),
        "greatest": float(missing.max()),
        "over half": float((missing > 0.5).double().mean()),
    }


def technique_of(setting: str) -> Any:
    """Return the attention or the policy that a setting names."""
    ((seam, text),) = parts(setting).items()
    return (POLICIES if seam == "policy" else ATTENTIONS).build(text)


def table(found: dict[str, dict[str, float]], about: str) -> str:
    """Return the results as text and a table."""
    order = ("keys", "mean", "p999", "greatest", "over half", "dropped")
    rows = [[f"`{name}`", *(each[key] for key in order)] for name, each in found.items()]
    return (
        f"## What techniques leave out of the softmax\n\n{about}\n\n{record.markdown(HEAD, rows)}"
    )


def main() -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="folder with wikitext2-test-raw.txt")
    parser.add_argument("--text", default="wikitext2", help="wikitext2, or a file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=8, help="whose heads are samples")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    window, count = (128, 2) if flags.quick else (flags.window, flags.tokens)
    out = flags.out or (Path("build") if flags.quick else record.RESULTS)
    facts = record.facts()
    try:
        config = Config.create(flags.model, max_model_len=window, threads=flags.threads)
        _, runner, tokenizer = load(config)
        text = tokenizer.encode(load_text(flags.text, flags.data_dir))[:window]
    except InputError as error:
        print(f"missing_mass.py: error: {error}", file=sys.stderr)
        return 2
    last = len(text) - 1
    tokens = sorted({last - last * at // (2 * count) for at in range(count)})
    found = measure(runner, text, tokens)
    heads = runner.decoder.config.heads * runner.windows.count(None)
    about = (
        f"{flags.model}, {flags.text}, the first {len(text)} tokens: {len(tokens)} tokens of the "
        f"second half in {heads} heads. 'Over half': the share of samples that miss more than half "
        "of their mass. The last column adds the keys whose values the value filter leaves out."
    )
    drawn = table(found, about)
    record.write(out, NAME, facts | {"about": about, "found": found}, drawn)
    print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
