"""The arguments of the server on Ray. Tests ray_arguments.py; needs no Ray."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from suffice.errors import InputError
from suffice.serve.ray_arguments import Cluster, check_address, names, read


@pytest.mark.parametrize("address", ["1.2.3:x", "head", ":6379", "head:70000", "ray://head:"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=f"--ray {address}: must be a head's address, such as"):
        check_address(address)


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        port = held.getsockname()[1]
        with pytest.raises(InputError, match=f"--ray 127.0.0.1:{port}: nothing answers there: Con"):
            check_address(f"127.0.0.1:{port}")
        held.listen()
        check_address(f"127.0.0.1:{port}")
        check_address(f"ray://127.0.0.1:{port}")
    check_address("auto")


def test_texts_of_a_command_line_and_values_of_yaml() -> None:
    texts = {
        "model": "smollm2-135m",
        "threads": "8",
        "instances": "4",
        "quant": "int8",
        "kv_cache_bytes": "1GiB",
        "parallel": "12",
        "alias": "small,tiny",
        "share_prefixes": "true",
        "shutdown_timeout": "7.5",
        "speculate": '{"method": "ngram"}',
    }
    values = {
        **texts,
        "threads": 8,
        "instances": 4,
        "parallel": 12,
        "alias": ["small", "tiny"],
        "share_prefixes": True,
        "shutdown_timeout": 7.5,
        "speculate": {"method": "ngram"},
    }
    settings, cluster = read(texts)
    assert (settings, cluster) == read(values)
    assert cluster == Cluster(threads=8, instances=4) and cluster.most == 4
    assert settings.options["threads"] == 8 and settings.options["quantization"] == "int8"
    assert settings.options["speculative_config"] == {"method": "ngram"}
    assert settings.max_num_seqs == settings.options["max_num_seqs"] == 12
    assert settings.served_names == ("small", "tiny") and settings.shutdown_seconds == 7.5
    assert settings.share_prefixes is True and not settings.page


def test_defaults_are_those_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from suffice import pull
    from suffice.cli.options import ModelFlags
    from suffice.cli.serve import ServerFlags
    from suffice.cli.serve import settings as of_flags
    from suffice.engine.options import EngineOptions

    monkeypatch.setattr(pull, "resolve", Path)  # whether the model is there does not matter
    own, cluster = read({})
    flags = of_flags(ServerFlags(), ModelFlags(options=EngineOptions(own.model)))
    differing = {"options", "page", "default_sampling", "hang_seconds"}
    for name in vars(flags):
        assert name in differing or getattr(own, name) == getattr(flags, name), name
    assert own.limits == flags.limits and cluster == Cluster()
    assert own.hang_seconds < flags.hang_seconds, "the front keeps sending requests to it"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"modle": "x"}, "unknown argument 'modle'. Did you mean 'model'?"),
        ({"threads": "many"}, "threads='many': must be a whole number"),
        ({"instances": 0}, "instances=0: must be at least 1"),
        ({"share_prefixes": "perhaps"}, "share_prefixes='perhaps': must be true or false"),
        ({"quant": "int9"}, "unknown quant 'int9'. Did you mean 'int8'?"),
        ({"speculate": "{"}, "is not JSON"),
        ({"front_nodes": "heads"}, "unknown front_nodes 'heads'. Did you mean 'head'?"),
        ({"min_instances": 2}, "a range of engines needs both"),
        ({"min_instances": 2, "max_instances": 4}, "they are 2, 1, 4"),
        ({"allow_attention": "certfied"}, "Did you mean 'certified'?"),
        ({"max_queue": -1}, "max_queue=-1: must be a whole number of at least 0"),
        ({"step_ms": "0"}, "step_ms=0.0: must be a number above 0"),
    ],
)
def test_bad_arguments_are_one_line(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        read(args)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_the_page_names_all_arguments() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs/ray.md").read_text()
    missing = [name for name in names() if f"`{name}`" not in page]
    assert not missing
