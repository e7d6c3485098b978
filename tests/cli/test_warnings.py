"""What is warned of in a line: options of vLLM that do nothing here, and lossy settings.

Also tests warned.py and foreign.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Cli, complaint
from fake_engine import scripted
from suffice import LLM
from suffice.engine.config import Config
from suffice.engine.foreign import FOREIGN
from suffice.engine.options import options
from suffice.errors import InputError, SufficeWarning
from suffice.warned import as_lines, held_back

CODES = (
    "-bit codes chosen without a calibration text lose much quality: int8 and 4bit lose little, "
)


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_what_means_nothing_here_is_taken_with_a_warning(name: str) -> None:
    own = FOREIGN[name]
    assert name not in options(), "it means something"
    value = own.allowed[0] if own.allowed else "0.5"
    with pytest.warns(SufficeWarning, match=f"^{name}='{value}' does nothing here: ") as found:
        assert Config.create("m", threads=1, **{name: value}) == Config.create("m", threads=1)
    assert len(found) == 1 and found[0].filename == __file__, "it points at the caller"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "tensor_parallel_size",
            2,
            "tensor_parallel_size=2: one process computes everything: leave it out, or give 1",
        ),
        (
            "trust_remote_code",
            True,
            "trust_remote_code=True: no code of a model is ever run: leave it out, or give false",
        ),
        ("device", "cuda", "device='cuda': all runs on the CPU: leave it out, or give cpu"),
    ],
)
def test_what_would_matter_is_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError) as refused:
        Config.create("m", **{name: value})
    assert str(refused.value) == message
    with pytest.raises(InputError, match=r"unknown option 'gpu_memory_utilisation'\. "):
        Config.create("m", gpu_memory_utilisation=0.9)


def test_values_that_ask_for_nothing_else() -> None:
    with pytest.warns(SufficeWarning) as warned:
        Config.create("m", threads=1, tensor_parallel_size=1, trust_remote_code=False)
    names = [str(warning.message).partition("=")[0] for warning in warned]
    assert names == ["tensor_parallel_size", "trust_remote_code"]


def test_their_flags(cli: Cli, fake: Callable[..., LLM]) -> None:
    fake(scripted(3, 4), template=False)
    given = ("--gpu-memory-utilization", "0.9", "--enforce-eager", "--no-enable-prefix-caching")
    ran = cli("run", "c", "--temp", "0", "-q", *given, "--tensor-parallel-size=1")
    assert (ran.code, ran.out) == (0, "abc\n")
    assert ran.err.splitlines() == [
        "suffice: warning: --gpu-memory-utilization=0.9 does nothing here: there is no GPU; "
        "kv_cache_bytes limits the cache",
        "suffice: warning: --enforce-eager does nothing here: there are no CUDA graphs",
        "suffice: warning: --no-enable-prefix-caching does nothing here: a session keeps its own "
        "cache",
        "suffice: warning: --tensor-parallel-size=1 does nothing here: one process computes "
        "everything",
    ]
    message = "--tensor-parallel-size=2: one process computes everything: leave it out, or give 1"
    for command in ("run", "chat", "bench"):
        assert complaint(cli(command, "--tensor-parallel-size", "2")) == message
    assert complaint(cli("run", "c", "--trust-remote-code")).startswith("--trust-remote-code: no c")
    assert "gpu-memory" not in cli("run", "--help").out


def test_codes_without_a_calibration_are_warned_of_once(cli: Cli, checkpoint: Path) -> None:
    asked = ("run", "--raw", "-q", "-m", str(checkpoint), "-n", "2", "hello")
    for quant, bits in (("rtn:group=64", 4), ("kmeans:bits=5,rounds=0,sweeps=0,group=none", 5)):
        ran = cli(*asked, "--quant", quant)
        said = ran.err.splitlines()
        assert ran.code == 0 and len(said) == 2
        assert said[0].startswith(f"quantizing the weights by {quant}, which can take minutes; ")
        assert said[1].startswith(f"suffice: warning: {bits}{CODES}")
    for quant in ("int8", "none"):
        assert cli(*asked, "--quant", quant).err == ""


def test_codes_that_need_a_calibration_are_refused_in_one_line(cli: Cli, checkpoint: Path) -> None:
    for quant in ("kllm", "kmeans:act_bits=4", "rtn:compensate=true"):
        ran = cli("run", "-m", str(checkpoint), "--quant", quant, "hello")
        start = f"suffice: error: --quant {quant}: needs a calibration text: give what"
        assert ran.code == 2 and ran.err.startswith(start) and ran.err.count("\n") == 1


def test_python_is_warned_as_python_warns(checkpoint: Path) -> None:
    with pytest.warns(SufficeWarning, match=f"^4{CODES}") as found:
        LLM(str(checkpoint), quantization="rtn:group=64", threads=1)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(str(checkpoint), quantization="int8", threads=1)


def test_a_line_is_printed_once_and_not_into_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    with as_lines(), pytest.warns(DeprecationWarning, match="of others"):
        warnings.warn("first", SufficeWarning, stacklevel=1)
        warnings.warn("of others", DeprecationWarning, stacklevel=1)
    with as_lines():
        with held_back():
            warnings.warn("held", SufficeWarning, stacklevel=1)
            assert "held" not in capsys.readouterr().err
        warnings.warn("held", SufficeWarning, stacklevel=1)
        assert capsys.readouterr().err == "suffice: warning: held\n"
