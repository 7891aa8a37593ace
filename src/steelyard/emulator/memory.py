"""The memory of one emulated card, and the error of PyTorch when it does not suffice. Pure."""

from __future__ import annotations

from collections.abc import Hashable

GIB = 1024**3


class CudaOutOfMemory(Exception):
    """An allocation does not fit; its text is in the shape that PyTorch gives."""


class Card:
    """Bytes on one card: ``resident`` (weights, context) plus what the jobs hold.

    ``allocated`` is what tensors hold now. ``reserved`` is what PyTorch's caching allocator took from the driver:
    it grows with the peak and is not given back, so that "used" as the driver tells it stays high on an idle card.
    """

    def __init__(self, total: int, resident: int = 0) -> None:
        if resident > total:
            raise ValueError(f"{resident} resident bytes do not fit a card of {total} bytes")
        self.total = total
        self.resident = resident
        self.allocated = resident
        self.peak = resident
        self.reserved = resident
        self.oom_count = 0
        self._held: dict[Hashable, int] = {}

    @property
    def free(self) -> int:
        """Bytes that a new job can still get (cached blocks are reused, so they count as free)."""
        return self.total - self.allocated

    def allocate(self, key: Hashable, size: int) -> None:
        """Hold ``size`` bytes for ``key``; raises CudaOutOfMemory when they exceed what is free."""
        if key in self._held:
            raise ValueError(f"{key!r} holds memory already")
        if size > self.free:
            raise CudaOutOfMemory(self.refusal(size))
        self._held[key] = size
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)

    def refusal(self, size: int) -> str:
        """Count one out-of-memory event and give PyTorch's text for it."""
        self.oom_count += 1
        return (
            f"CUDA out of memory. Tried to allocate {size / GIB:.2f} GiB. GPU 0 has a total capacity of "
            f"{self.total / GIB:.2f} GiB of which {self.free / GIB:.2f} GiB is free. Of the allocated memory "
            f"{self.allocated / GIB:.2f} GiB is allocated by PyTorch."
        )

    def release(self, key: Hashable) -> int:
        """Give back what ``key`` holds; 0 when it holds nothing."""
        size = self._held.pop(key, 0)
        self.allocated -= size
        return size

    def clear(self) -> None:
        """The process died: everything but the resident part is free, the allocator's cache too."""
        self._held.clear()
        self.allocated = self.resident
        self.reserved = self.resident
