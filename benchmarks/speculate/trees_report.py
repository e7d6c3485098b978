"""The table and the pictures of trees.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness.tables import Cell, CellStore, markdown
from benchmarks.speculate import sequoia
from benchmarks.speculate.speed import PLAIN

COUNTS = (1, 2, 4, 6, 8, 12, 16, 26, 31)  # drafts; the BMC paper's trees have 26
MOST = 31
COUNTED = "rates"
LEAST = 30  # times that a depth was reached, for its rates to count
BAR = 0.97  # least speed of an adaptive tree over its chain's
Ways = dict[str, dict[str, float]]


def summed(cells: Sequence[Cell]) -> Ways:
    """Return the sums of some cells, by way."""
    return {
        way: {key: sum(cell["ways"][way][key] for cell in cells) for key in own}
        for way, own in cells[0]["ways"].items()
    }


def speed(way: dict[str, float]) -> float:
    """Return the tokens per second of a way."""
    return way["tokens"] / way["seconds"] if way["seconds"] else 0.0


def steps(way: dict[str, float]) -> float:
    """Return the tokens of a decode step."""
    return 1 + way["accepted"] / way["steps"] if way["steps"] else 1.0


def by_temperature(store: CellStore) -> dict[str, dict[str, dict[str, Cell]]]:
    """Return the cells by temperature, category and family."""
    found: dict[str, dict[str, dict[str, Cell]]] = {}
    for place, cells in store.cells.items():
        category, _, temperature = place.partition(" at temperature ")
        found.setdefault(temperature, {})[category] = cells
    return found


def is_tree(way: str) -> bool:
    """Whether a setting makes trees, whose greedy tokens may differ by rounding."""
    return "tree=true" in way or "width=" in way


def different(store: CellStore) -> list[str]:
    """Return the greedy cells of chains whose tokens differ from plain decoding."""
    return [
        f"{category}: {way}"
        for category, cells in by_temperature(store).get("0", {}).items()
        for family, cell in cells.items()
        if family != COUNTED
        for way, own in cell["ways"].items()
        if own["same"] < cell["prompts"] and not is_tree(way)
    ]


def table(store: CellStore) -> str:
    """Return the results: a table of each family and temperature, and the expected tokens."""
    config = store.config
    about = (
        f"{config['model']}, weights {config['weights']}, {config['kv_cache_dtype']} keys and "
        f"values, {config['threads']} threads ({config['clock']} time), up to "
        f"{config['max_tokens']} tokens. A cell is the tokens per second over those of plain "
        "decoding, measured prompt by prompt in turn; in brackets the tokens of a decode step. "
        "`over its chain` is the tokens per second of a family's trees over those of its chain, "
        "its first way."
    )
    text = [f"## Trees and chains: {config['model']}", about]
    for temperature, categories in by_temperature(store).items():
        families = dict.fromkeys(name for cells in categories.values() for name in cells)
        for family in families:
            if family == COUNTED:
                continue
            own = {name: cells[family] for name, cells in categories.items() if family in cells}
            text += [f"Temperature {temperature}, {family}:", family_table(own)]
        if counted := counted_in(categories):
            text += [
                f"Temperature {temperature}, expected tokens of a step of n drafts, from "
                f"{rates_text(counted)}:",
                expected_table(counted),
            ]
    return "\n\n".join([*text, verdict(store)])


def family_table(cells: dict[str, Cell]) -> str:
    """Return the table of a family, by category."""
    ways = [way for way in next(iter(cells.values()))["ways"] if way != PLAIN]
    rows: list[list[Any]] = []
    for category, parts in [*((name, [cell]) for name, cell in cells.items()), ("all", None)]:
        chosen = parts or list(cells.values())
        found, prompts = summed(chosen), sum(cell["prompts"] for cell in chosen)
        plain = speed(found[PLAIN])
        row = [category, prompts, f"{plain:.1f}"]
        row += [f"{speed(found[way]) / plain:.2f} ({steps(found[way]):.2f})" for way in ways]
        row += [f"{speed(found[way]) / speed(found[ways[0]]):.2f}" for way in ways[1:]]
        rows.append([*row, "/".join(f"{found[way]['same']:.0f}" for way in ways)])
    head = ["category", "prompts", "plain tokens/s", *(f"`{way}`" for way in ways)]
    head += [f"`{way}` over its chain" for way in ways[1:]]
    return markdown([*head, "same texts"], rows)


def counted_in(categories: dict[str, dict[str, Cell]]) -> list[Cell]:
    """Return the cells of the way whose siblings were counted."""
    cells = [cells[COUNTED] for cells in categories.values() if COUNTED in cells]
    return [cell for cell in cells if cell["ranks"]]


def rates_of(cells: Sequence[Cell]) -> list[list[float]]:
    """Return how often each sibling was right, by depth and rank, over all cells.

    Depths after the first that were reached less than 30 times are left out.
    """
    depths = max(len(cell["ranks"]) for cell in cells)
    found: list[list[float]] = []
    for depth in range(depths):
        levels = [cell["ranks"][depth] for cell in cells if depth < len(cell["ranks"])]
        ranks = max(map(len, levels))
        sums = [
            [sum(level[rank][part] for level in levels if rank < len(level)) for part in (0, 1)]
            for rank in range(ranks)
        ]
        if depth and sums[0][0] < LEAST:
            break
        found.append([right / seen for seen, right in sums])
    return found


def rates_text(cells: Sequence[Cell]) -> str:
    """Return the setting whose rates were measured, and those of the first depth."""
    (way,) = cells[0]["ways"]
    first = ", ".join(f"{rate:.2f}" for rate in rates_of(cells)[0])
    return f"the rates of `{way}` (first depth, by rank: {first})"


def expected(cells: Sequence[Cell]) -> dict[str, list[float]]:
    """Return the expected tokens of a step of n = 0 to 31 drafts, by shape."""
    rates = rates_of(cells)
    kinds = {
        "chain": sequoia.best_chains,
        "chain with siblings": sequoia.best_with_siblings,
        "Sequoia's tree": sequoia.best_trees,
    }
    return {name: [1 + accepted for accepted in kind(rates, MOST)] for name, kind in kinds.items()}


def expected_table(cells: Sequence[Cell]) -> str:
    """Return the expected tokens of a step for some numbers of drafts."""
    found = expected(cells)
    rows = [[name, *(f"{tokens[count]:.2f}" for count in COUNTS)] for name, tokens in found.items()]
    return markdown(["drafts", *map(str, COUNTS)], rows)


def verdict(store: CellStore) -> str:
    """Return the least speed of adaptive trees over their chains, over all categories together."""
    found: dict[str, float] = {}
    for temperature, categories in by_temperature(store).items():
        for family in dict.fromkeys(name for cells in categories.values() for name in cells):
            cells = [own[family] for own in categories.values() if family in own]
            ways = summed(cells)
            chain = next((way for way in ways if way != PLAIN), "")
            for way in ways:
                if family != COUNTED and is_tree(way) and "adaptive=false" not in way:
                    ratio = speed(ways[way]) / speed(ways[chain])
                    found[f"`{way}` at temperature {temperature}"] = ratio
    if not found:
        return "No adaptive trees were measured."
    least = min(found, key=found.__getitem__)
    word = "held" if found[least] >= BAR else "missed"
    return (
        f"Adaptive trees over their chains, all categories: at least {found[least]:.2f} ({least}); "
        f"the bar is {BAR}: {word}."
    )


def draw(store: CellStore) -> None:
    """Plot the speed-ups by category as in the BMC paper's Fig. 12, and the expected tokens."""
    from benchmarks.harness.figures import bars, curves

    greedy = by_temperature(store).get("0", {})
    groups: dict[str, dict[str, float]] = {}
    families = dict.fromkeys(name for cells in greedy.values() for name in cells)
    shown = [family for family in families if family != COUNTED and "all checked" not in family]
    parts = [*((name, [cells]) for name, cells in greedy.items()), ("all", list(greedy.values()))]
    for category, chosen in parts:
        for family in shown:
            own_cells = [cells[family] for cells in chosen if family in cells]
            ways = summed(own_cells) if len(own_cells) == len(chosen) else {}
            for way, own in ways.items():
                if way != PLAIN:
                    label = way if len(way) < 30 else way.partition(":")[0] + ending(way)
                    groups.setdefault(category, {})[label] = speed(own) / speed(ways[PLAIN])
    if groups:
        title = f"Trees and chains: {store.config['model']}, greedy"
        bars(
            store.folder / f"{store.name}.png", title, "times plain decoding", groups, stacked=False
        )
    if counted := counted_in(greedy):
        series = {
            name: [(float(count), tokens[count]) for count in range(1, MOST + 1)]
            for name, tokens in expected(counted).items()
        }
        curves(
            store.folder / f"{store.name}_expected.png",
            "Expected tokens of a step by the shape of its drafts, greedy",
            ("drafts", "tokens"),
            series,
        )


def ending(way: str) -> str:
    """Return the option by which a family's ways differ, for a label."""
    return f":{way[way.index('width=') :]}" if "width=" in way else ""
