"""Get the libraries of the server's page from npm: src/suffice/serve/page/lib.

npm downloads them and checks what it got. The files stay as they are published, but for lines that
name source maps. LICENSES.txt has their licences, SHA256SUMS the sums, which a test compares.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

LIB = Path(__file__).parent.parent / "src" / "suffice" / "serve" / "page" / "lib"
LANGUAGES = (
    *("bash", "cpp", "csharp", "diff", "dockerfile", "go", "ini", "java", "json", "kotlin"),
    *("makefile", "markdown", "python", "rust", "sql", "typescript", "xml", "yaml"),
)
PACKAGES = {  # name and version: the licence's file, and where each other file goes
    "marked@18.2.1": ("LICENSE", {"lib/marked.esm.js": "marked.js"}),
    "idb-keyval@6.3.0": ("LICENCE", {"dist/index.js": "idb-keyval.js"}),
    "@highlightjs/cdn-assets@11.12.0": (
        "LICENSE",
        {
            "es/core.min.js": "highlight.js",
            **{f"es/languages/{name}.min.js": f"languages/{name}.js" for name in LANGUAGES},
        },
    ),
}
SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)


def packed(package: str, folder: Path) -> dict[str, str]:
    """Return the text files of a package, by their paths in it."""
    subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    (archive,) = folder.glob("*.tgz")
    found = {}
    with tarfile.open(archive) as files:
        for each in files:
            if each.isfile() and each.name.endswith((".js", "/LICENSE", "/LICENCE")):
                stream = files.extractfile(each)
                assert stream is not None, "it is a file"
                found[each.name.removeprefix("package/")] = stream.read().decode()
    archive.unlink()
    return found


def main() -> None:
    """Write the libraries, their licences and the sums of all."""
    written = {}
    licences = []
    with tempfile.TemporaryDirectory() as name:
        for package, (licence, files) in PACKAGES.items():
            found = packed(package, Path(name))
            licences.append(f"{package}\n\n{found[licence].strip()}\n")
            for source, target in files.items():
                written[target] = SOURCE_MAP.sub("", found[source]).rstrip() + "\n"
    written["LICENSES.txt"] = f"\n{'-' * 72}\n\n".join(licences)
    sums = []
    for target, text in sorted(written.items()):
        path = LIB / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        sums.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {target}\n")
    (LIB / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
