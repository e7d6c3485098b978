"""Rows of every task as a hub has them, and lm-evaluation-harness's tasks on such rows."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

Rows = Sequence[dict[str, Any]]
DATA = os.environ.get("SUFFICE_DATA_DIR")  # read here: the command line's tests unset it
YAML = {
    "piqa": "piqa/piqa.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
}
_PIQA = [
    ("How do you dry a wet coat?", "Hang it near the stove.", "Put it in the lake.", 0),
    ("boil an egg", "Heat it in the sand.", "Heat water, add the egg for 8 minutes. ", 1),
    ("To open a jar,", "hit it with a 'brick'", 'say "open"\\n to it', 0),
    ("café: how to keep it hot ", "pour it into a thermos", "pour it onto a plate — 日本語", 0),
    ("sharpen a pencil", "use a spoon", "use a sharpener", 1),
    ("carry water", "in a bucket", "in a net", 0),
    ("Where do you keep butter?", "in the fridge", "in the oven", 0),
    ("fix a tyre", "patch", "paint the tyre blue, then wait until it has dried", 0),
    ("How do owls see at night?", "with lamps", "with large eyes", 1),
    ("write a letter", "Take paper and pen, begin with a greeting.", "x", 0),
    ("clean a window", "mud", "water with vinegar", 1),
    ("make tea", "Pour hot water over leaves.", "Pour leaves over cold sand.", 0),
]
PIQA: Rows = [
    {"goal": goal, "sol1": one, "sol2": two, "label": label} for goal, one, two, label in _PIQA
]
_ARC: Rows = [
    {
        "question": "Which one is a bird?",
        "choices": {"text": ["a fox", "an owl", "a 'dog'", "café"], "label": list("ABCD")},
        "answerKey": "B",
    },
    {
        "question": "2 + 2 = ? ",
        "choices": {"text": ["3", "4", "5"], "label": ["1", "2", "3"]},
        "answerKey": "2",
    },
]
ROWS: dict[str, Rows] = {
    "piqa": PIQA,
    "arc_easy": _ARC,
    "arc_challenge": _ARC,
    "hellaswag": [
        {
            "activity_label": "Making  tea",
            "ctx_a": "[header] How to make tea [title] Boil water. [step] Take a pot.",
            "ctx_b": "the WATER",
            "endings": ["is hot [substeps] and steams.", "flies", "barks ", " sings.  Loudly."],
            "label": "0",
        },
        {
            "activity_label": "Running",
            "ctx_a": "A fox runs.",
            "ctx_b": "",
            "endings": ["It jumps.", "It reads.", "It cooks.", "It writes."],
            "label": "3",
        },
    ],
    "winogrande": [
        {
            "sentence": "The fox outran the dog because _ was quick .",
            "option1": "the fox",
            "option2": "the dog",
            "answer": "1",
        },
        {
            "sentence": "Ann's coat is warmer than Eve's, so _ is cold in winter.",
            "option1": "Ann",
            "option2": "Eve",
            "answer": "2",
        },
    ],
    "boolq": [
        {"passage": "Owls are birds.\nThey fly.", "question": "is an owl a bird", "label": 1},
        {"passage": "Foxes are not birds.", "question": "can a fox fly", "label": 0},
    ],
    "openbookqa": [
        {
            "question_stem": "At night owls",
            "choices": {"text": ["hunt", "read", "swim", "melt"], "label": list("ABCD")},
            "answerKey": "A",
        },
        {
            "question_stem": "Ice in the sun will ",
            "choices": {"text": ["melt", "sing", "grow", "burn"], "label": list("ABCD")},
            "answerKey": "D",
        },
    ],
}


def write_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def real_piqa(count: int) -> Rows:
    """Return rows of the real data set, as the hub has them; skip where there are none."""
    if DATA is None:
        pytest.skip("no real PIQA: set SUFFICE_DATA_DIR to a folder that has piqa-valid.jsonl")
    lines = (Path(DATA) / "piqa-valid.jsonl").read_text(encoding="utf-8").split("\n")[:count]
    labels = (Path(DATA) / "piqa-valid-labels.lst").read_text(encoding="utf-8").split()
    return [
        {**json.loads(line), "label": int(label)}
        for line, label in zip(lines, labels, strict=False)
    ]


def their_task(name: str, rows: Rows, folder: Path) -> Any:
    """Return a task of lm-evaluation-harness, its own definition on other rows."""
    import lm_eval.tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.tasks.__file__).parent / YAML[name])
    split = config.get("test_split") or config["validation_split"]
    file = write_lines(folder / f"{name}-rows.jsonl", rows)
    return ConfigurableTask(
        config={
            **config,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {split: str(file)}, "cache_dir": str(folder)},
            "training_split": None,
            "validation_split": None,
            "test_split": split,
        }
    )
