"""A decoder run layer by layer over windows of text, for quantization.

All windows pass through a layer before the next one begins. So a layer's matrices can be replaced
once their inputs are known, and later layers see the outputs of the replaced ones. In memory are a
hidden state for each token and, for the current layer, H = E[x x^T] and some inputs of each
activation site. Where tokens have weights (see `sensitivity`), each matrix also has its own
E[weight x x^T].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from suffice.decoder.weights import DecoderWeights
from suffice.quant import PackedLinear
from suffice.quant.sites import CALIBRATED
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_weights import HOST

_SITE_OF = {matrix: site for site, matrices in CALIBRATED.items() for matrix in matrices}
SAMPLES = 512  # inputs of a site that are kept, approximately
GRADIENT = ".gradient"  # after the name of a site: the gradients of its samples


@dataclass
class SiteInputs:
    """Inputs of an activation site: H = E[x x^T], float32 [K, K], and samples of them [T, K].

    `weighted` has E[w x x^T] by matrix, for tokens' weights w with mean 1, if there are any.
    `gradients` [T, K] are those of the samples, if they are known.
    """

    hessian: torch.Tensor
    samples: torch.Tensor
    gradients: torch.Tensor | None = None
    weighted: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def none(cls, width: int, device: torch.device = HOST) -> SiteInputs:
        """Return an empty instance for a site of `width` inputs K."""
        return cls(torch.zeros(width, width, device=device), torch.empty(0, width, device=device))

    def add(self, x: torch.Tensor, tokens: int) -> None:
        """Add x^T x of inputs [T, K], out of `tokens` in all, and keep their share of SAMPLES."""
        self.hessian.addmm_(x.T, x)
        self.samples = torch.cat((self.samples, sampled(x, tokens)))

    def to_host(self) -> None:
        """Move them to the host, where weights are quantized."""
        self.hessian, self.samples = self.hessian.cpu(), self.samples.cpu()
        self.weighted = {matrix: each.cpu() for matrix, each in self.weighted.items()}

    def of(self, matrix: str) -> torch.Tensor:
        """Return the second moments that weight the errors of a matrix."""
        return self.weighted.get(matrix, self.hessian)


def sampled(x: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return a sample of values [T, K]: their share of SAMPLES out of `tokens` in all."""
    every = max(tokens // SAMPLES, 1)
    return x[every // 2 :: every]


Stored = tuple[torch.Tensor, torch.Tensor]  # keys and values of a window in a layer


class Layerwise(TorchDecoder):
    """Runs `decoder`, whose weights it shares and changes, over windows of tokens.

    `weights` are those of the tokens of each window, [T] by matrix such as `layers.0.q`. They may
    have gradients of sites as well: see `sensitivity`.
    """

    def __init__(
        self,
        decoder: DecoderWeights,
        windows: Sequence[Sequence[int]],
        weights: Sequence[Mapping[str, torch.Tensor]] = (),
    ) -> None:
        device = decoder.device if isinstance(decoder, TorchDecoder) else HOST
        super().__init__(decoder.config, decoder.weights, device=device)
        self.weights = decoder.weights  # shared, so that replaced weights are freed
        self._inputs: dict[str, SiteInputs] | None = None
        self._firsts: dict[str, str] = {}  # of each site's matrices, the first that a layer has
        self._routed: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._weights = weights
        self._window = 0
        self._states = [self._embed(torch.tensor(window), slice(len(window))) for window in windows]
        self._passes = [  # of each window: see `TorchDecoder`
            (self._layer_embeddings(torch.tensor(window), state), dict[int, Stored]())
            for window, state in zip(windows, self._states, strict=True)
        ]
        self._tokens = sum(map(len, self._states))

    def replace(self, index: int, matrices: dict[str, PackedLinear]) -> None:
        """Replace matrices of a layer by name."""
        for name, matrix in matrices.items():
            self.weights[f"layers.{index}.{name}"] = matrix

    def matrices(self, index: int) -> dict[str, PackedLinear]:
        """Return the matrices of a layer by name."""
        names = (name for names in CALIBRATED.values() for name in names)
        found = {name: self.weights.get(f"layers.{index}.{name}") for name in names}
        return {name: each for name, each in found.items() if isinstance(each, PackedLinear)}

    @torch.no_grad()
    def inputs(self, index: int) -> dict[str, SiteInputs]:
        """Return the inputs of each site of a layer, on the host; those of its experts are
        `routed`."""
        self._inputs, self._routed = {}, []
        for window, state in enumerate(self._states):
            self._run(index, state, window)
        found, self._inputs = self._inputs, None
        for site, each in found.items():
            each.gradients = self._gradients(f"layers.{index}.{site}{GRADIENT}")
            each.hessian /= self._tokens
            for matrix, weighted in list(each.weighted.items()):
                name = f"layers.{index}.{matrix}"
                whole = sum(float(weights[name].sum()) for weights in self._weights)
                if whole > 0:
                    weighted /= whole
                else:  # nothing depends on it
                    del each.weighted[matrix]
            each.to_host()
        return found

    @property
    def routed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs [T, M] of the experts of the last `inputs`, and their weights [T, E], on the
        host."""
        rows, weights = zip(*self._routed, strict=True)
        return torch.cat(rows).cpu(), torch.cat(weights).cpu()

    def _note_visits(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        if self._inputs is not None:
            self._routed.append((rows, weights))

    def _gradients(self, name: str) -> torch.Tensor | None:
        """Return the gradients at a site, of all windows."""
        found = [each[name] for each in self._weights if name in each]
        return torch.cat(found) if found else None

    @torch.no_grad()
    def advance(self, index: int) -> None:
        """Pass all windows through a layer."""
        states = enumerate(self._states)
        self._states = [self._run(index, state, window) for window, state in states]

    def _run(self, index: int, state: torch.Tensor, window: int) -> torch.Tensor:
        """Run a layer on the states of a window; return what becomes of them."""
        self._window = window
        self._own_inputs, self._stored = self._passes[window]
        layer, rows = self.config.layers[index], len(state)
        tables = [(cos[:rows], sin[:rows]) for cos, sin in self._rope_rows(rows)]
        table = None if layer.rope is None else tables[layer.rope]
        return self._layer(index, state, table, None, None)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        matrix = name.rpartition(".")[2]
        if self._inputs is not None and matrix in _SITE_OF:
            self._take_inputs(self._inputs, name, matrix, x)
        return super()._linear(name, x)

    def _take_inputs(
        self, inputs: dict[str, SiteInputs], name: str, matrix: str, x: torch.Tensor
    ) -> None:
        site = _SITE_OF[matrix]
        if site not in inputs:
            inputs[site] = SiteInputs.none(x.shape[1], x.device)
            self._firsts[site] = matrix
        if matrix == self._firsts[site]:  # the others of the site share the input
            inputs[site].add(x, self._tokens)
        own = self._weights[self._window].get(name) if self._weights else None
        if own is not None:
            weighted = inputs[site].weighted
            scaled = (x.T * own.to(x.device)) @ x
            weighted[matrix] = weighted[matrix] + scaled if matrix in weighted else scaled
