"""What generates text runs without PyTorch, transformers and the server's packages: all blocked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import block_heads
import heads
import predictors
import tiny
from calibrating import text_flags

BLOCKED = """
import sys
for name in ("torch", "transformers", "fastapi", "uvicorn", "msgspec", "prometheus_client"):
    sys.modules[name] = None  # an import of it fails
"""
# Prints a line per setting: its name, and the number of tokens.
GENERATE = """
from suffice import LLM, SamplingParams
from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.cache import GROWTHS, KV_DTYPES
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.speculate import SPECULATORS

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 6
PARAMS = SamplingParams(temperature=0.7, max_tokens=4, seed=1, ignore_eos=True, logprobs=1)
MODEL, CALIBRATION, HEAD, BLOCKS, WITH_MODULE = sys.argv[1:]
OPTIONS = {
    "speculator:dflash": {"speculative_config": "dflash:model=" + BLOCKS},
    "speculator:draft_model": {"speculative_config": "draft_model:model=" + MODEL},
    "speculator:eagle3": {"speculative_config": "eagle3:model=" + HEAD},
    "speculator:mtp": {"model": WITH_MODULE, "speculative_config": "mtp"},
    "quant:kllm": {"quantization": "kllm:act_bits=16"},
    "softmax:exaq": {"softmax": "exaq", "calibration": CALIBRATION},
    "softmax:exaq_km": {"softmax": "exaq_km", "calibration": CALIBRATION},
}

def generated(name, model=MODEL, **options):
    llm = LLM(model, threads=1, **options)
    (output,) = llm.generate([PROMPT], PARAMS)
    print(name, len(output.outputs[0].token_ids))

for kind, option, table in (
    ("attention", "attention", ATTENTIONS),
    ("softmax", "softmax", SOFTMAXES),
    ("policy", "policy", POLICIES),
    ("growth", "growth", GROWTHS),
    ("quant", "quantization", QUANTS),
    ("speculator", "speculative_config", SPECULATORS),
    ("cache", "kv_cache_dtype", {each: each for each in KV_DTYPES}),
):
    for technique in table.names() if hasattr(table, "names") else table:
        key = f"{kind}:{technique}"
        generated(key, **OPTIONS.get(key, {option: technique}))
"""
COMMANDS = """
from suffice.cli import main
sys.argv = ["suffice", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("light"), "llama", tokenizer=True)


def ran(code: str, *arguments: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_technique_generates(model: Path, tmp_path: Path) -> None:
    from suffice.attention import ATTENTIONS, SOFTMAXES
    from suffice.cache import GROWTHS, KV_DTYPES
    from suffice.policy import POLICIES
    from suffice.quant import QUANTS
    from suffice.speculate import SPECULATORS

    file = tmp_path / "calibration.json"
    ran(COMMANDS, "calibrate", "-m", model, "-o", file, *text_flags(tmp_path, 2))
    head = heads.make(tmp_path / "head", model)
    blocks = block_heads.make(tmp_path / "blocks", model, block_size=8)
    module = predictors.make(tmp_path / "module", "glm4-moe")
    lines = ran(GENERATE, model, file, head, blocks, module).splitlines()
    tables = (ATTENTIONS, SOFTMAXES, POLICIES, GROWTHS, QUANTS, SPECULATORS)
    assert len(lines) == sum(len(table.names()) for table in tables) + len(KV_DTYPES)
    assert all(line.endswith(" 4") for line in lines), lines


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "-n", "3", "hi"],
        ["bench", "--n-prompt", "8", "--n-gen", "4", "--repetitions", "1"],
        ["info", "-m"],
        ["info"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_run(arguments: list[str], model: Path) -> None:
    command, *rest = arguments
    if command == "info":
        assert ran(COMMANDS, *arguments, *([model] if rest else []))
    else:
        assert ran(COMMANDS, command, "-m", model, *rest)


def test_chat_runs(model: Path) -> None:
    assert ran(COMMANDS, "chat", "-m", model, "-n", "3", stdin="hello\n")


def test_a_session_keeps_its_cache(model: Path) -> None:
    code = """
from suffice import LLM, SamplingParams
with LLM(sys.argv[1]).session() as session:
    for text in ("one", "two"):
        messages = [{"role": "user", "content": text}]
        print(len([*session.chat(messages, SamplingParams(max_tokens=3, ignore_eos=True))]) > 0)
"""
    assert ran(code, model).split() == ["True", "True"]


@pytest.mark.parametrize(
    ("code", "arguments", "message"),
    [
        (
            "import suffice.integrations.transformers",
            (),
            "ImportError: suffice.integrations needs torch: pip install 'suffice[transformers]'",
        ),
        (
            COMMANDS,
            ("quantize", "--text", "x.txt", "-o", "x.safetensors"),
            "suffice: error: `suffice quantize` needs PyTorch: pip install 'suffice[quantize]'",
        ),
        (
            COMMANDS,
            ("serve",),
            "suffice: error: `suffice serve` needs uvicorn: pip install 'suffice[serve]'",
        ),
    ],
)
def test_what_needs_more_names_it(code: str, arguments: tuple[str, ...], message: str) -> None:
    run = [sys.executable, "-c", BLOCKED + code, *arguments]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    assert ended.returncode and ended.stderr.splitlines()[-1] == message


def test_a_blocked_package_is_missed() -> None:
    """The check itself: what imports PyTorch fails here."""
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        ran("import suffice.quantize.torch_decoder")
