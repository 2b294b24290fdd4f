"""The policies of `[llm.schedule]`: one mechanism, with other numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from proteus.language.task import Modality, Task
from proteus.limits import LatencyClass, Schedule

RECENT = 64  # submissions whose share of media `auto` looks at: the weight of the newest is 1 / RECENT
POOLS_FROM_SHARE = 0.5
RATIO_BELOW_SHARE = 0.35  # apart from the other, or chance alone would switch to and fro near one half


class Policy:
    """Who may have how many slots, in which order, and how prompts are cut.

    `fifo` is none of it: one order by arrival over classes and tenants, prompts whole, one after the other.
    """

    def __init__(self, limits: Schedule, *, slots: int) -> None:
        self._caps: Mapping[str, Mapping[Modality, int]] = {
            "pools": {"text": limits.text_slots, "media": slots - limits.text_slots},
            "ratio": {"text": slots, "media": limits.max_media_slots},
            "priority": {"text": slots, "media": slots},
            "fifo": {"text": slots, "media": slots},
        }
        self._by_traffic = limits.policy == "auto"
        self._media_share = 0.0
        self.name: str = "ratio" if self._by_traffic else limits.policy
        self.is_fair = self.name != "fifo"  # between tenants
        self.cuts_prompts = self.name != "fifo"
        self.max_media_prefills = limits.max_media_prefills if self.name != "fifo" else slots
        self._aging_s: Mapping[LatencyClass, float] = {
            "text": 0.0,
            "media": limits.media_aging_ms / 1000 if self.is_fair else 0.0,
            "batch": limits.batch_aging_ms / 1000 if self.is_fair else 0.0,
        }

    @property
    def caps(self) -> Mapping[Modality, int]:
        """Slots that each modality may have at once. Nobody loses a slot when they change."""
        return self._caps[self.name]

    def order(self, task: Task, since_s: float) -> tuple[float, int]:
        """The least goes first. The key never changes, so whoever waits is passed only by those who come within the
        aging of its class. Media that call themselves text wait like media.
        """
        aged = "media" if task.visual_tokens and task.latency_class == "text" else task.latency_class
        return since_s + self._aging_s[aged], task.number

    def saw(self, task: Task) -> None:
        """Takes a new arrival into the share of media."""
        self._media_share += (bool(task.visual_tokens) - self._media_share) / RECENT
        if self._by_traffic and self._media_share >= POOLS_FROM_SHARE:
            self.name = "pools"
        elif self._by_traffic and self._media_share < RATIO_BELOW_SHARE:
            self.name = "ratio"
