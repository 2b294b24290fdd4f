from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.admission.heap import FEW, Heap

ORDERS = st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.integers(0)), max_size=60)


def test_an_empty_heap_has_no_first() -> None:
    heap = Heap[str]()
    heap.discard("never added")
    assert heap.first() is None


def test_equal_orders_come_by_number() -> None:
    heap = Heap[str]()
    heap.add("late", order=1.0, number=2)
    heap.add("early", order=1.0, number=1)
    assert heap.first() == "early"
    assert heap.order_of("late") == 1.0


def test_an_item_that_comes_back_counts_with_its_new_order() -> None:
    heap = Heap[str]()
    heap.add("a", order=1.0, number=1)
    heap.discard("a")
    heap.add("b", order=2.0, number=2)
    heap.add("a", order=3.0, number=3)
    assert heap.first() == "b"


@settings(max_examples=60)
@given(ORDERS)
def test_the_first_is_the_least_and_memory_follows_the_items(steps: list[tuple[int, bool, int]]) -> None:
    heap, kept = Heap[int](), dict[int, int]()
    for number, (order, discard, which) in enumerate(steps):
        heap.add(number, order=order, number=number)
        kept[number] = order
        if discard:
            gone = sorted(kept)[which % len(kept)]
            heap.discard(gone)
            del kept[gone]
        assert heap.first() == (min(kept, key=lambda item: (kept[item], item)) if kept else None)
        assert len(heap) == len(kept)
        assert heap.num_entries <= 2 * len(kept) + FEW


def test_entries_of_discarded_items_are_swept_out() -> None:
    heap = Heap[int]()
    for number in range(1000):
        heap.add(number, order=0.0, number=number)
    for number in range(5, 1000):
        heap.discard(number)
    assert heap.first() == 0
    assert heap.num_entries <= 2 * 5 + FEW
