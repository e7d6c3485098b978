"""Pack the site that tools/arm.sh compiled as a wheel for ARM, in dist/: `tools/arm.sh wheel`.

The other half of a wheel's making, its metadata, is that of a wheel for this machine.

    python tools/arm_wheel.py build/arm/site python3.11
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def metadata(folder: Path) -> Path:
    """Have the build backend write the metadata of a wheel, and return its folder."""
    code = "from scikit_build_core import build as b; import sys; "
    code += "print(b.prepare_metadata_for_build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    ran = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return folder / ran.stdout.split()[-1]


def main() -> None:
    """Write the wheel and have auditwheel name the oldest Linux that it runs on."""
    site, version = Path(sys.argv[1]), sys.argv[2].removeprefix("python").replace(".", "")
    tag = f"cp{version}-cp{version}-linux_aarch64"
    (ROOT / "dist").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = folder / "whole"
        subprocess.run(["cp", "-r", str(site), str(whole)], check=True)
        info = metadata(folder)
        lines = [
            f"Tag: {tag}" if line.startswith("Tag:") else line
            for line in (info / "WHEEL").read_text().splitlines()
        ]
        (info / "WHEEL").write_text("\n".join(dict.fromkeys(lines)) + "\n")
        info.rename(whole / info.name)
        for cache in whole.rglob("__pycache__"):
            subprocess.run(["rm", "-r", str(cache)], check=True)
        subprocess.run(
            [sys.executable, "-m", "wheel", "pack", str(whole), "--dest-dir", name],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made = next(folder.glob("*.whl"))
        subprocess.run(
            ["auditwheel", "repair", "--wheel-dir", str(ROOT / "dist"), str(made)], check=True
        )


if __name__ == "__main__":
    main()
