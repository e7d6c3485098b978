"""The Dockerfile, the unit of systemd and docs/deploy.md agree with the server and each other."""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_dashboard import names, offered

from serving import Served, until
from suffice.cli.environment import OTHERS
from suffice.serve.settings import Settings

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "suffice.service"
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
CONNECTIONS_SECONDS = 5  # `timeout_graceful_shutdown` of serve/run.py


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    bare = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    lines = re.sub(r"\\\n\s*", "", bare).splitlines()
    return [(first, rest) for line in lines if line for first, _, rest in [line.partition(" ")]]


def run_stage() -> dict[str, list[str]]:
    """Return the arguments of the last stage's instructions, by instruction."""
    steps = dockerfile()
    last = max(at for at, (first, _) in enumerate(steps) if first == "FROM")
    found: dict[str, list[str]] = {}
    for first, rest in steps[last:]:
        found.setdefault(first, []).append(rest)
    return found


def variables() -> dict[str, str]:
    (pairs,) = run_stage()["ENV"]
    return dict(pair.split("=", 1) for pair in shlex.split(pairs))


def unit() -> dict[str, list[str]]:
    """Return the values of the unit's keys; a key may be given several times."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@functools.cache
def known_variables() -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from suffice.cli import main; main()", "serve", "--help"],
        capture_output=True,
        check=True,
        text=True,
    )
    flags = re.findall(r"(?<![\w-])--([a-z][a-z-]*)", done.stdout)
    return {"SUFFICE_" + flag.upper().replace("-", "_") for flag in flags} | set(OTHERS)


def test_the_image_is_built_in_two_stages_and_has_no_compiler() -> None:
    stages = [rest for first, rest in dockerfile() if first == "FROM"]
    assert len(stages) == 2 and stages[0] == f"{stages[1]} AS build"
    assert not re.search(r"apt-get|pip|g\+\+", " ".join(run_stage()["RUN"]))
    (copied,) = run_stage()["COPY"]
    assert copied.startswith("--from=build ")


def test_the_image_runs_the_server_as_a_user_of_a_fixed_id() -> None:
    order = [first for first, _ in dockerfile()]
    assert order.index("USER") < order.index("HEALTHCHECK") < order.index("ENTRYPOINT")
    stage = run_stage()
    (user,) = stage["USER"]
    number = user.split(":")[0]
    assert int(number) >= 1000 and f"--uid {number} " in stage["RUN"][0]
    assert f"user {number}" in PAGE
    assert json.loads(stage["ENTRYPOINT"][0]) == ["suffice"]
    assert json.loads(stage["CMD"][0]) == ["serve", "--host", "0.0.0.0"]
    assert stage["EXPOSE"] == [str(Settings(model="any").port)]


def test_the_volume_is_the_cache_folder_and_the_users() -> None:
    stage, own = run_stage(), variables()
    (volume,) = stage["VOLUME"]
    assert own["SUFFICE_CACHE"] == volume and own["HF_HOME"].startswith(volume + "/")
    assert re.search(rf"install .*--owner=suffice .*{volume}$", stage["RUN"][0])
    assert f"suffice:{volume} suffice" in PAGE


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [
        source
        for first, rest in dockerfile()
        if first == "COPY" and not rest.startswith("--from")
        for source in shlex.split(rest)[:-1]
    ]
    assert {"pyproject.toml", "CMakeLists.txt", "csrc", "src"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in rules
    assert {rule[1:] for rule in rules if rule[0] == "!"} == set(sources)
    assert rules[1] == "*" and any(fnmatch.fnmatch("a/b.so", rule) for rule in rules[2:])


def test_the_build_needs_no_file_that_is_not_copied() -> None:
    about = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^(?:readme|license-files) = (.+)$", about)
    named = [name for line in lines for name in re.findall(r'"([^"]+)"', line)]
    copied = " ".join(rest for first, rest in dockerfile() if first == "COPY")
    assert len(lines) == 2 and len(named) == 3
    for name in named:
        assert {name, name.partition("/")[0]} & set(shlex.split(copied)), name
    assert "cmake.define.SUFFICE_SETS=${SETS}" in " ".join(rest for first, rest in dockerfile())
    assert ("ARG", "SETS=all") in dockerfile()  # another machine may run it


def test_shell_commands_of_the_image_are_well_formed() -> None:
    commands = [rest for first, rest in dockerfile() if first == "RUN"]
    assert len(commands) == 4
    for command in commands:
        subprocess.run(["sh", "-n", "-c", command], check=True)


def checked(port: int) -> int:
    """Return the exit status of the image's check of health, for a server at a port."""
    (check,) = run_stage()["HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"
    own = {"SUFFICE_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, *command[1:]], env=os.environ | own, stderr=subprocess.DEVNULL
    ).returncode


def test_the_check_of_health_tells_a_server_that_is_well(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(server.url.rpartition(":")[2])
    assert checked(port) == 0
    monkeypatch.setattr(server.front.instance, "ailment", lambda: "engine 0 hangs")
    until(lambda: server.client.get("/health").status_code == 503)
    assert checked(port) == 1


def test_the_check_of_health_fails_where_nobody_listens() -> None:
    assert checked(9) == 1


def test_variables_are_flags_of_the_server() -> None:
    texts = [PAGE, UNIT.read_text(encoding="utf-8"), (ROOT / "Dockerfile").read_text()]
    used = set(re.findall(r"(?<!cmake\.define\.)\bSUFFICE_[A-Z_]+", " ".join(texts)))
    assert len(used) > 6
    assert used - known_variables() == set()


def test_flags_of_the_page_are_flags_of_the_server() -> None:
    known = known_variables()
    others = {
        *("--init", "--stop-timeout", "--memory", "--shm-size", "--cpuset-cpus", "--cpus", "--now"),
        *("--health-start-period", "--no-healthcheck", "--read-only", "--tmpfs", "--cap-drop"),
        *("--security-opt", "--build-arg"),
    }
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) - others:
        assert "SUFFICE_" + flag[2:].upper().replace("-", "_") in known, flag


def test_what_stops_the_server_waits_for_its_requests() -> None:
    longest = Settings(model="any").shutdown_seconds + CONNECTIONS_SECONDS
    (seconds,) = unit()["TimeoutStopSec"]
    assert longest < int(seconds)
    for waits in re.findall(r"--stop-timeout (\d+)|GracePeriodSeconds` is (\d+)", PAGE):
        assert "".join(waits) == seconds


def test_the_unit_keeps_what_the_server_writes() -> None:
    own = unit()
    (folder,) = own["CacheDirectory"]
    assert f"SUFFICE_CACHE=%C/{folder} " in own["Environment"][0]
    assert own["CacheDirectoryMode"] == ["0700"] and own["UMask"] == ["0077"]
    assert own["KillSignal"] == ["SIGTERM"] and own["KillMode"] == ["mixed"]
    assert own["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert own["Restart"] == ["on-failure"]


needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)


def analyzed(folder: Path, *verb: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Return what systemd-analyze says of the unit, whose program is one that is there."""
    program = folder / "suffice"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    copy = folder / UNIT.name
    text = text or UNIT.read_text(encoding="utf-8")
    copy.write_text(text.replace("/opt/suffice/bin/suffice", str(program)), encoding="utf-8")
    return subprocess.run(
        ["systemd-analyze", *verb, str(copy)], capture_output=True, text=True, check=False
    )


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    done = analyzed(tmp_path, "verify", "--man=no")
    assert done.returncode == 0 and UNIT.name not in done.stderr, done.stderr
    wrong = UNIT.read_text(encoding="utf-8").replace("ProtectSystem=strict", "ProtectSystm=strict")
    assert "ProtectSystm" in analyzed(tmp_path, "verify", "--man=no", text=wrong).stderr


@needs_systemd
def test_the_unit_leaves_the_server_few_rights(tmp_path: Path) -> None:
    rated = "--threshold=20", "--offline=true"  # of 100, which is a unit without limits
    done = analyzed(tmp_path, "security", *rated)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is older than 250")
    assert done.returncode == 0, done.stdout
    loose = UNIT.read_text(encoding="utf-8").replace("SystemCallFilter=", "#")
    assert analyzed(tmp_path, "security", *rated, text=loose).returncode != 0


def test_proxies_do_not_hold_streams_back() -> None:
    (nginx,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    assert nginx.count("{") == nginx.count("}")
    for line in (
        "proxy_buffering off;",
        "proxy_http_version 1.1;",
        "proxy_read_timeout 1h;",
        "proxy_next_upstream error http_503 non_idempotent;",
    ):
        assert line in nginx
    assert f"client_max_body_size {Settings(model='any').max_body_bytes >> 20}m;" in nginx
    (caddy,) = re.findall(r"```caddyfile\n(.*?)```", PAGE, re.DOTALL)
    assert "health_uri /ready" in caddy and "flush_interval" not in caddy


def test_metrics_of_the_page_are_there(server: Served) -> None:
    asked = names([PAGE], "suffice")
    assert len(asked) >= 3 and asked - offered(server) == set()


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
