# What the extension offers is declared in csrc/bind.cpp, which checks every argument itself.
from typing import Any

def __getattr__(name: str) -> Any: ...
