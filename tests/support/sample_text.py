"""A sentence that tests repeat to have a text."""

from __future__ import annotations

OWLS = "The owls look on; 0123456789 again and again, as they have done before. "
