"""What libcuda tells of GPUs, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from proteus import cuda_driver


class Driver:
    """Stands for libcuda: two devices, the second one broken."""

    def cuInit(self, _: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, handle: Any, device: int) -> int:
        handle._obj.value = device
        return 0 if device in (0, 1) else 101

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:
        value._obj.value = {75: 12, 76: 1}[attribute]
        return 0 if handle.value == 0 else 1


def test_the_driver_tells_the_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda _: Driver())
    assert cuda_driver.compute_capabilities() == (121, 0)
    assert [cuda_driver.compute_capability(device) for device in (0, 1, 2)] == [121, None, None]


def test_without_a_driver_there_is_no_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", missing)
    assert cuda_driver.compute_capabilities() == ()
    assert cuda_driver.compute_capability() is None
