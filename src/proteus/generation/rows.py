"""Rows of a call of the denoiser, written in place into memory bound once, whatever runtime computes them.

R rows of a call, Z latent channels, h and w sides in latents, T text tokens, E width of a text state, P width of the
pooled text. A lone row may take other kernels, whose sums differ in the last bits; it is run twice in one call then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proteus.deployment import DeploymentError
from proteus.generation.bucket import Size
from proteus.generation.task import Condition, Floats
from proteus.manifest import DrawManifest

PAIR = 2  # the fewest rows that surely take the kernels of many
TRIALS = 2  # noises on which one row is compared with itself beside another, once for each size
MAX_KEPT_SIZES = 16  # whose memory is kept: a client chooses the size of its picture
Call = Callable[[], None]  # computes the prediction from what is in the inputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TextRows:
    """One memory for all calls: its shape does not depend on the size of a picture."""

    states: Floats  # (R, T, E)
    pooled: Floats | None  # (R, P)
    timesteps: Floats  # (R,)
    guidance: Floats | None  # (R,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The call of one size and number of rows. What is written stays until another call of that size, or a text."""

    num_rows: int
    num_padded: int
    latents: Floats  # (R, Z, h, w)
    prediction: Floats  # (R, Z, h, w)
    text: _TextRows
    call: Call

    def write(
        self, first: int, latent: Floats, timestep: float, conditions: Sequence[Condition], guidance: float
    ) -> None:
        """The rows of one picture from `first` on: the same latent (Z, h, w) with each of its conditions."""
        text = self.text
        for row, condition in enumerate(conditions, first):
            self.latents[row] = latent
            text.timesteps[row] = timestep
            text.states[row] = condition.states
            if text.pooled is not None:
                text.pooled[row] = condition.pooled
            if text.guidance is not None:
                text.guidance[row] = guidance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SizeRows:
    """Of one size."""

    latents: Floats  # (R, Z, h, w)
    prediction: Floats  # (R, Z, h, w)
    calls: dict[int, Rows]  # by number of rows; 1: on its own or doubled, whichever gives the bits of many


class RowDenoiser(ABC):
    """Not thread-safe: one thread writes rows and runs them. A runtime says how a call is bound; the rest is here."""

    def __init__(self, manifest: DrawManifest, *, max_rows: int) -> None:
        self._channels = manifest.latent_channels
        self._max_rows = max_rows
        self._text = _TextRows(
            states=self._zeros(max_rows, manifest.text_tokens, manifest.text_width),
            pooled=self._zeros(max_rows, manifest.pooled_width) if manifest.pooled_width else None,
            timesteps=self._zeros(max_rows),
            guidance=self._zeros(max_rows) if manifest.embedded_guidance else None,
        )
        self._sizes: OrderedDict[Size, _SizeRows] = OrderedDict()  # asked for last: at the end

    @abstractmethod
    def _bind(self, inputs: Mapping[str, Floats], prediction: Floats) -> Call:
        """A call that reads and writes these arrays, whatever is in them when it is made."""

    def _zeros(self, *shape: int) -> Floats:
        """Memory that a call of this runtime reads from and writes to."""
        return np.zeros(shape, dtype=np.float32)

    def _room(self, num_rows: int) -> int:
        """Rows of the call that so many are run in."""
        return num_rows

    def rows(self, size: Size, num_rows: int) -> Rows:
        """The call to write, and then to run: the same one for the same arguments, unless many sizes came between."""
        memory = self._memory(size)
        if num_rows not in memory.calls:
            room = self._room(num_rows)
            memory.calls[num_rows] = self._lone(memory) if room == 1 else self._rows(memory, num_rows, room)
        return memory.calls[num_rows]

    def run(self, rows: Rows) -> Floats:
        """Predictions (R, Z, h, w), valid until the next call of this size."""
        if rows.num_padded:
            for array in (rows.latents, *self._text_inputs().values()):
                array[rows.num_rows : rows.num_rows + rows.num_padded] = array[:1]
        rows.call()
        return rows.prediction

    def _memory(self, size: Size) -> _SizeRows:
        if size in self._sizes:
            self._sizes.move_to_end(size)
            return self._sizes[size]
        if len(self._sizes) == MAX_KEPT_SIZES:
            self._sizes.popitem(last=False)
        shape = (self._max_rows, self._channels, *size)
        memory = self._sizes[size] = _SizeRows(latents=self._zeros(*shape), prediction=self._zeros(*shape), calls={})
        return memory

    def _lone(self, memory: _SizeRows) -> Rows:
        """One row as it is, where it gives the bits that it gives beside another; doubled elsewhere.

        Kernels follow shapes, not values, so a few noises tell. What is written into the rows is lost.
        """
        alone, doubled = self._rows(memory, 1, 1), self._rows(memory, 1, PAIR)
        noise = np.random.default_rng(0)
        for _ in range(TRIALS):
            for array in (memory.latents, *self._text_inputs().values()):
                array[0] = noise.standard_normal(array.shape[1:])
            once = self.run(alone).copy()
            if not np.array_equal(once.view(np.uint32), self.run(doubled).view(np.uint32)):
                return doubled
        return alone

    def _rows(self, memory: _SizeRows, num_rows: int, room: int) -> Rows:
        inputs = {"latents": memory.latents, **self._text_inputs()}
        return Rows(
            num_rows=num_rows,
            num_padded=room - num_rows,
            latents=memory.latents,
            prediction=memory.prediction[:num_rows],
            text=self._text,
            call=self._bind({name: array[:room] for name, array in inputs.items()}, memory.prediction[:room]),
        )

    def _text_inputs(self) -> dict[str, Floats]:
        text = self._text
        given = {
            "timestep": text.timesteps,
            "text_states": text.states,
            "pooled": text.pooled,
            "guidance": text.guidance,
        }
        return {name: array for name, array in given.items() if array is not None}


def check_inputs(path: Path, found: Collection[str], manifest: DrawManifest) -> None:
    """A program takes what its manifest says; raises DeploymentError."""
    wanted = {"latents", "timestep", "text_states"}
    wanted |= {"pooled"} if manifest.pooled_width else set()
    wanted |= {"guidance"} if manifest.embedded_guidance else set()
    if wanted != set(found):
        raise DeploymentError(
            f"{path} takes {', '.join(sorted(found))}",
            limit=f"by its manifest {', '.join(sorted(wanted))}",
            fix="export the checkpoint again",
        )
