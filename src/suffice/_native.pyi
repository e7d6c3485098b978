# What the extension offers is declared in csrc/bind, which checks every argument itself.
from typing import Any

def __getattr__(name: str) -> Any: ...
