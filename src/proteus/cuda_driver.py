"""What the driver says of the GPUs here, without a context on any of them and without CUDA's libraries."""

from __future__ import annotations

import ctypes

DRIVER = "libcuda.so.1"
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
SUCCESS = 0


def compute_capabilities(library: str = DRIVER) -> tuple[int, ...]:
    """Of each GPU that this process sees, x 10, by its number: 89 is 8.9; 0 of one that the driver cannot ask.

    Of none where there is no driver, or no GPU.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) != SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != SUCCESS:
        return ()
    return tuple(_capability(driver, number) for number in range(count.value))


def compute_capability(device: int = 0) -> int | None:
    """That of one GPU x 10; None where there is none of that number, or the driver cannot ask it."""
    found = compute_capabilities()
    return (found[device] or None) if device < len(found) else None


def _capability(driver: ctypes.CDLL, number: int) -> int:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    told = (
        driver.cuDeviceGet(ctypes.byref(device), number),
        driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, device),
        driver.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, device),
    )
    return major.value * 10 + minor.value if told == (SUCCESS,) * 3 else 0
