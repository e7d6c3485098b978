"""Weighted k-means in one dimension.

    centroids c and codes i that minimize  sum_j weight[j] (value[j] - c[i[j]])^2

Dynamic programming finds the optimum over at most 256 groups of neighbouring values. Lloyd's
iteration then refines it on all values. In one dimension a cluster is an interval of the sorted
values, so each step is a binary search for borders and a difference of prefix sums. With at most
256 distinct values the groups are the values, and the result is the optimum. More than 65536 values
are sorted into as many equal bins, and each bin counts as its mean.
"""

from __future__ import annotations

import itertools

import numpy as np

from suffice.errors import InputError

GROUPS, BINS = 256, 1 << 16
CHUNK = 1 << 14  # values compared at a time: they and their codes stay in the cache
FEW = 128  # borders that are compared one by one, without a branch
SOME = 256  # values for which a search is faster than a comparison with each border
ITERATIONS = 100


def codebook(values: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Return `count` centroids, ascending float32 [C], of values and weights of any one shape.

    Values without weight do not count. If there are fewer distinct values than centroids, the last
    centroid is repeated.

    Raises:
        InputError: No value has weight, or a value or weight is not finite.
    """
    value, weight = values.reshape(-1), np.broadcast_to(weights, values.shape).reshape(-1)
    if not (np.isfinite(value).all() and np.isfinite(weight).all()):
        raise InputError("K-means: NaN or infinite values or weights; all must be finite")
    counts = weight > 0
    if not counts.all():
        value, weight = value[counts], weight[counts]
    if not len(value):
        raise InputError("K-means: no value has a weight above 0; at least one must")
    value, weight = _sorted(value, weight)
    mass = np.concatenate(([0.0], np.cumsum(weight)))
    moment = np.concatenate(([0.0], np.cumsum(weight * value)))
    centroids = _lloyd(value, mass, moment, _grouped(value, weight, count))
    padded = np.concatenate((centroids, np.repeat(centroids[-1:], count - len(centroids))))
    return padded.astype(np.float32)


def borders(centroids: np.ndarray) -> np.ndarray:
    """Return the C - 1 values midway between ascending centroids [C]."""
    middles: np.ndarray = (centroids[1:] + centroids[:-1]) / 2
    return middles


def codes_of(values: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centroid for each value; of two equally near, the lower
    one."""
    return intervals(values, borders(centroids))


def intervals(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the number of the ascending `edges`, at most 255, that lie below each value: uint8."""
    if len(edges) > FEW or values.size <= SOME:
        return np.searchsorted(edges, values).astype(np.uint8)
    codes = np.zeros(values.size, np.uint8)
    flat, above = values.reshape(-1), np.empty(min(CHUNK, values.size), np.bool_)
    for begin in range(0, len(flat), CHUNK):
        part, found = flat[begin : begin + CHUNK], codes[begin : begin + CHUNK]
        more = above[: len(part)]
        ones = more.view(np.uint8)
        for edge in edges:
            np.greater(part, edge, out=more)
            np.add(found, ones, out=found)
    return codes.reshape(values.shape)


def _sorted(value: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values and weights in ascending order, float64; very many values are put into bins."""
    least, greatest = float(value.min()), float(value.max())
    if len(value) <= BINS or least == greatest:
        order = np.argsort(value.astype(np.float64))
        return value[order].astype(np.float64), weight[order].astype(np.float64)
    mass, moment = np.zeros(BINS), np.zeros(BINS)
    for begin in range(0, len(value), CHUNK):
        part, cost = (x[begin : begin + CHUNK].astype(np.float64) for x in (value, weight))
        bins = ((part - least) * ((BINS - 1) / (greatest - least))).astype(np.intp)
        np.add.at(mass, bins, cost)
        np.add.at(moment, bins, cost * part)
    used = mass > 0
    return moment[used] / mass[used], mass[used]


def _grouped(value: np.ndarray, weight: np.ndarray, count: int) -> np.ndarray:
    """Return the best centroids of the values in groups of neighbours."""
    starts = np.flatnonzero(np.concatenate(([True], value[1:] != value[:-1])))
    if len(starts) > GROUPS:
        bins = np.linspace(value[0], value[-1], GROUPS, endpoint=False)
        starts = np.unique(np.searchsorted(value, bins))
    mass = np.add.reduceat(weight, starts)
    return optimum(mass, np.add.reduceat(weight * value, starts) / mass, count)


def optimum(mass: np.ndarray, means: np.ndarray, count: int) -> np.ndarray:
    """Return the optimal centroids, at most `count`, of weighted ascending points [N].

    Dynamic programming over the position where each cluster begins: N^2 memory.
    """
    points = len(mass)
    clusters = min(count, points)
    centred = means - means.mean()  # less cancellation in the squares below
    sums = [np.concatenate(([0.0], np.cumsum(mass * centred**power))) for power in (0, 1, 2)]
    first, last = np.triu_indices(points)
    weight, linear, square = (each[last + 1] - each[first] for each in sums)
    cost = np.full((points + 1, points + 1), np.inf)  # by end, of the points [begin, end)
    # Points whose weight vanishes in the difference of sums cost nothing.
    explained = np.divide(linear * linear, weight, out=np.zeros_like(weight), where=weight > 0)
    cost[last + 1, first] = np.maximum(square - explained, 0.0)
    best, begins = cost[:, 0], []
    for _ in range(clusters - 1):
        total = cost + best
        begins.append(total.argmin(1))
        best = total[np.arange(points + 1), begins[-1]]
    cuts = [points]
    for begin in reversed(begins):
        cuts.append(int(begin[cuts[-1]]))
    spans = itertools.pairwise([0, *sorted(cuts)])
    return np.array([np.average(means[a:b], weights=mass[a:b]) for a, b in spans])


def _lloyd(
    value: np.ndarray, mass: np.ndarray, moment: np.ndarray, centroids: np.ndarray
) -> np.ndarray:
    """Move centroids to the means of the values nearest to them until no value changes cluster."""
    previous = None
    for _ in range(ITERATIONS):
        middle = (centroids[1:] + centroids[:-1]) / 2
        cuts = np.concatenate(([0], np.searchsorted(value, middle, side="right"), [len(value)]))
        if previous is not None and np.array_equal(cuts, previous):
            break
        inside = np.diff(mass[cuts])
        means = np.diff(moment[cuts]) / np.where(inside > 0, inside, 1)
        centroids = np.where(inside > 0, means, centroids)
        previous = cuts
    return centroids
