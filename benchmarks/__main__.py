"""List the benchmarks: `python -m benchmarks`."""

from __future__ import annotations

from benchmarks.catalog import SCRIPTS


def main() -> None:
    """Print each script with its duration and the measurement."""
    width = max(len(script.module) for script in SCRIPTS)
    for module, measures, time in SCRIPTS:
        print(f"python -m benchmarks.{module:{width}}  {time:10}  {measures}")
    print("--help of each lists its options; --quick, where there is one, is a trial run.")


if __name__ == "__main__":
    main()
