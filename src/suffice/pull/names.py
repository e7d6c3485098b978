"""Names of models on a hub: of repositories, and of files in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HUB_NAME = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<file>[^:@]+\.gguf))?"
    r"(?::(?P<tag>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?",
    re.ASCII,
)
_LONGEST = 200  # characters, as names of folders are made of them
_MAIN = "main"


@dataclass(frozen=True)
class HubName:
    """ORG/REPO, ORG/REPO:TAG or ORG/REPO/FILE.gguf, each perhaps with @REVISION.

    Attributes:
        repo: ORG/REPO.
        file: The path of a .gguf file in it.
        tag: The part of a .gguf file's name that says its type, such as Q4_K_M.
        revision: A branch, tag or commit.
    """

    repo: str
    file: str | None = None
    tag: str | None = None
    revision: str = _MAIN

    @classmethod
    def read(cls, text: str) -> HubName | None:
        """Return what a text names; None if it has another form, such as a path's."""
        found = _HUB_NAME.fullmatch(text) if len(text) <= _LONGEST else None
        if found is None or found["repo"].endswith((".gguf", ".safetensors")):
            return None
        if found["file"] and (found["tag"] or ".." in found["file"].split("/")):
            return None
        return cls(found["repo"], found["file"], found["tag"], found["revision"] or _MAIN)

    @property
    def whole(self) -> bool:
        """Whether it names a repository, not one of its files."""
        return self.file is None and self.tag is None

    def matches(self, file: str) -> bool:
        """Return whether it names a .gguf file of its repository, given by path."""
        if self.tag is None:
            return self.file in (None, file)
        stem = file.rpartition("/")[2].removesuffix(".gguf")
        return bool(re.search(rf"(^|[._-]){re.escape(self.tag)}($|[.-])", stem, re.IGNORECASE))

    def of(self, file: str) -> str:
        """Return the name of a file of the same repository and revision; "" for all of it."""
        path = f"{self.repo}/{file}" if file else self.repo
        return path if self.revision == _MAIN else f"{path}@{self.revision}"

    def __str__(self) -> str:
        tag = "" if self.tag is None else f":{self.tag}"
        revision = "" if self.revision == _MAIN else f"@{self.revision}"
        return f"{self.repo}/{self.file}{revision}" if self.file else f"{self.repo}{tag}{revision}"
