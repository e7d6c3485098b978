"""Rows of a cache that a step may keep or drop: drafts, and the tokens that they continue."""

from __future__ import annotations

from suffice.errors import InputError


class Tentative:
    """The tree of tentative rows; `visible` says which of them each one sees, as a bit mask."""

    def __init__(self) -> None:
        self.visible: list[int] = []

    def __len__(self) -> int:
        return len(self.visible)

    def add(self, parents: list[int], room: int) -> list[int]:
        """Add rows after `parents`, at most `room`; return their masks.

        Raises:
            InputError: They do not fit, or a parent does not come before its child.
        """
        require_whole("parents", parents)
        if len(parents) > room:
            raise InputError(f"{len(parents)} drafts do not fit: {room} rows are spare")
        for i, parent in enumerate(parents):
            if not -1 <= parent < len(self) + i:
                raise InputError(f"draft {i}: parent {parent} must be a tentative row before it")
        for parent in parents:
            own = 1 << len(self)
            self.visible.append(own | (self.visible[parent] if parent >= 0 else 0))
        return self.visible[-len(parents) :] if parents else []

    def check(self, path: list[int]) -> None:
        """Refuse a path that does not begin at the committed rows, each row after its parent.

        Raises:
            InputError: It does not, or names a row that is not tentative.
        """
        require_whole("path", path)
        if not all(a < b for a, b in zip([-1, *path], [*path, len(self)], strict=True)):
            raise InputError(
                f"path {path} must be ascending tentative rows (there are {len(self)})"
            )
        before = 0
        for row in path:
            if self.visible[row] != before | 1 << row:
                raise InputError(
                    f"path {path}: tentative row {row} does not continue the row before it"
                )
            before = self.visible[row]


def require_whole(name: str, rows: list[int]) -> None:
    """Refuse what is no list of whole numbers.

    Raises:
        InputError: It is none.
    """
    if not isinstance(rows, list) or not set(map(type, rows)) <= {int}:
        raise InputError(f"{name} {rows!r:.60} must be a list of whole numbers")
