from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proteus.cost.vector import ResourceVector
from proteus.limits import Resources

NAMES = [name for name, _ in ResourceVector().named()]
vectors = st.builds(ResourceVector, **{name: st.integers(0, 10**15) for name in NAMES})


def test_limits_name_the_resources_that_the_vector_has() -> None:
    assert list(Resources.model_fields) == NAMES


@given(vectors, vectors)
def test_what_is_added_can_be_taken_off(one: ResourceVector, other: ResourceVector) -> None:
    assert one + other - other == one
    assert one + other == other + one
    assert one + ResourceVector() == one
