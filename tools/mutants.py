"""Try seeded faults: each is put into a copy of the tree, and the tests that it names must fail.

    python tools/mutants.py list                      the faults, by subject
    python tools/mutants.py run                       all of them: more than an hour on two cores
    python tools/mutants.py run --subject format:gptq --only gguf-types
    python tools/mutants.py run --whole               against all tests, not those that it names
    python tools/mutants.py run --resume              go on: without those that were caught

A fault that survives shows that its tests are too weak, or that a test was cut too far. Every
result is stored at once. The exit status is 1 if a fault survived, or did not fit or compile.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from mutants_faults import ROOT, Fault, faults
from mutants_tree import FAILED, PASSED, BuildError, Ran, Tree
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suffice.progress import counted

CAUGHT, SURVIVED, BROKEN = "caught", "survived", "broken"
# Seconds for the tests that a fault names, and for all; beyond them they hang.
LIMIT, WHOLE = 600.0, 7200.0


def working_folder() -> Path:
    """Return the folder of the copy and its build, one for each checkout."""
    name = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"suffice-mutants-{name}"


def chosen(only: Sequence[str], subjects: Sequence[str]) -> list[Fault]:
    """Return the faults with these names or subjects (`format` stands for all formats); or all."""
    found = faults()
    names = {fault.name for fault in found}
    kinds = {kind for fault in found for kind in (fault.subject, fault.subject.split(":")[0])}
    for given, known, what in ((only, names, "fault"), (subjects, kinds, "subject")):
        for each in given:
            if each not in known:
                raise click.BadParameter(f"there is no {what} '{each}': see `mutants.py list`")
    if not only and not subjects:
        return found
    asked = {*only, *subjects}
    return [f for f in found if asked & {f.name, f.subject, f.subject.split(":")[0]}]


def tried(tree: Tree, fault: Fault, whole: bool) -> dict[str, Any]:
    """Put a fault into the tree, and return what its tests, or all, say of it."""
    found = {"subject": fault.subject, "digest": fault.digest, "tests": list(fault.tests)}
    with tree.changed(fault) as fits:
        if not fits:
            return {**found, "result": BROKEN, "by": "its text is not there once"}
        if fault.native:
            try:
                tree.compile()
            except BuildError as error:
                why = {"by": "does not compile", "output": str(error)}
                return {**found, "result": BROKEN, **why}
        ran = tree.test(() if whole else fault.tests, WHOLE if whole else LIMIT)
    return {**found, **judged(ran), "seconds": round(ran.seconds, 1)}


def judged(ran: Ran) -> dict[str, str]:
    """Return what a faulty run says: a crash or a hang is noticed as well as a failed test."""
    if ran.code is None:
        return {"result": CAUGHT, "by": "it hangs"}
    if ran.code == PASSED:
        return {"result": SURVIVED, "by": ""}
    if ran.code == FAILED:
        return {"result": CAUGHT, "by": ran.failed[0]}
    if ran.code < 0:
        return {"result": CAUGHT, "by": f"it dies of signal {-ran.code}"}
    return {"result": BROKEN, "by": "pytest could not run the tests", "output": ran.output}


def is_caught(fault: Fault, found: dict[str, Any]) -> bool:
    """Return whether a stored result is of this change, and says that a test noticed it."""
    return found.get("result") == CAUGHT and found["digest"] == fault.digest


def all_tried(tree: Tree, asked: Sequence[Fault], whole: bool) -> Iterator[tuple[str, Any]]:
    """Yield each fault's name and result; the extension is compiled before its first fault."""
    compiled = False
    for fault in asked:
        if fault.native and not compiled:
            tree.compile_clean()
            compiled = True
        yield fault.name, tried(tree, fault, whole)


def distrust(tree: Tree, results: dict[str, dict[str, Any]]) -> None:
    """Run the tests that failed without any fault, once: those that fail again caught nothing.

    So do tests that hang, or take as long as if they did, or die.
    """
    caught = [each for each in results.values() if each["result"] == CAUGHT]
    unsure = [each for each in caught if not each.get("sound")]
    failed = {each["by"] for each in unsure if "::" in each["by"]}
    if unsure:
        tree.install_clean()
    again = set(tree.test(sorted(failed), WHOLE, stop=False).failed) if failed else set()
    for each in unsure:
        each["sound"] = each["by"] not in again
        if each["by"] not in failed:
            each["sound"] = tree.test(each["tests"], LIMIT).code == PASSED
        if not each["sound"]:
            each.update(result=BROKEN, by=f"fails without it, too: {each['by']}")


def show(results: dict[str, dict[str, Any]], asked: Sequence[Fault]) -> int:
    """Print a table of the results; return how many were not caught."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table("fault", "subject", "result", "by")
    for fault in asked:
        found = results[fault.name]
        style = "" if found["result"] == CAUGHT else "bold red"
        by = escape(found["by"])  # names of tests have brackets
        table.add_row(fault.name, fault.subject, found["result"], by, style=style)
    console.print(table)
    counts = Counter(results[fault.name]["result"] for fault in asked)
    console.print(", ".join(f"{counts[each]} {each}" for each in (CAUGHT, SURVIVED, BROKEN)))
    return len(asked) - counts[CAUGHT]


@click.group(help=(__doc__ or "").partition("\n")[0])
def main() -> None:
    """Dispatch to a command."""


@main.command("list")
def listing() -> None:
    """List the faults by subject."""
    table = Table("subject", "fault", "file", "what would go wrong")
    for fault in sorted(faults(), key=lambda each: (each.subject, each.name)):
        table.add_row(fault.subject, fault.name, fault.file, fault.why)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@main.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only this fault; may be repeated.")
@click.option("--subject", multiple=True, help="Only this subject; may be repeated.")
@click.option("--whole", is_flag=True, help="Run all tests, not only those that a fault names.")
@click.option("--resume", is_flag=True, help="Leave out what the results say was caught.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file of results.")
@click.option("--work", type=click.Path(path_type=Path), help="A folder for the copy and build.")
def run(
    only: tuple[str, ...],
    subject: tuple[str, ...],
    whole: bool,
    resume: bool,
    output: Path | None,
    work: Path | None,
) -> None:
    """Try the faults, and print which were caught."""
    asked = chosen(only, subject)
    tree = Tree(ROOT, (work or working_folder()).absolute())
    output = output or tree.folder / "results.json"
    results = json.loads(output.read_text()) if resume and output.exists() else {}
    left = [fault for fault in asked if not is_caught(fault, results.get(fault.name, {}))]
    with tree.held():
        steps = all_tried(tree, left, whole)
        for name, found in counted("faults", len(asked), steps, len(asked) - len(left)):
            results[name] = found
            output.write_text(json.dumps(results, indent=1) + "\n")
        distrust(tree, results)
    output.write_text(json.dumps(results, indent=1) + "\n")
    bad = show(results, asked)
    click.echo(f"results: {output}", err=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
