# What the extension offers is declared in csrc/hw/bind*.cpp, which check every argument themselves.
from typing import Any

Part = Any
Counts = Any

def __getattr__(name: str) -> Any: ...
