from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffice import native


@pytest.fixture(params=native.ISAS)
def each_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test under every instruction set; one that the CPU lacks is skipped, visibly."""
    if request.param not in native.isas():
        pytest.skip(f"this CPU lacks {request.param}")
    before = native.isa()
    native.use_isa(request.param)
    yield request.param
    native.use_isa(before)
