"""The rendered Helm chart that tests of this folder look at."""

from __future__ import annotations

import pytest

from tests.docker.helm_cases import CASES
from tests.docker.helm_chart import Object, render


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """What the chart renders, for every case of the table."""
    values, deployment = request.param
    return render(values, deployment)
