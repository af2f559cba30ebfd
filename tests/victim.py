"""A compiled program that runs in this process, so that one part of it can be changed before it runs again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bbgrap.compiler.artifacts import Artifacts, SegmentModel
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import load_segment, local_kernels
from bbgrap.graph import Array
from bbgrap.program.steps import Program
from bbgrap.runtime.execution import Kernel

Feeds = Sequence[Array]


@dataclass(frozen=True)
class Victim:
    """A compiled program that runs in this process; `before` are the inputs of the request before."""

    program: Program
    feeds: Feeds
    before: Feeds

    @cached_property
    def artifacts(self) -> Artifacts:
        return export(self.program)

    @cached_property
    def kernels(self) -> list[Kernel]:
        return local_kernels(self.artifacts)

    @cached_property
    def answer(self) -> list[Array]:
        return simulate(self.artifacts, self.feeds, self.kernels)

    @cached_property
    def heard_before(self) -> Mapping[tuple[int, int], Sequence[Array]]:
        """What every segment was given in the request before, by device and segment."""
        heard: dict[tuple[int, int], Sequence[Array]] = {}

        def listening(device: int, kernel: Kernel) -> Kernel:
            def run(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
                heard[device, segment] = [np.array(array) for array in inputs]
                return kernel(segment, inputs)

            return run

        simulate(self.artifacts, self.before, [listening(n, kernel) for n, kernel in enumerate(self.kernels)])
        return heard

    def asked(self, feeds: Feeds, before: Feeds) -> Victim:
        """Return the same program with another request."""
        other = replace(self, feeds=feeds, before=before)
        other.__dict__.update(artifacts=self.artifacts, kernels=self.kernels)  # these depend on the program only
        return other

    def run(self, artifacts: Artifacts | None = None, kernels: Mapping[int, Kernel] | None = None) -> list[Array]:
        """Run with other artifacts, or other kernels on some devices."""
        chosen = [(kernels or {}).get(n, kernel) for n, kernel in enumerate(self.kernels)]
        return simulate(artifacts or self.artifacts, self.feeds, chosen)

    def with_segment(self, device: int, segment: int, model: SegmentModel, weights: Mapping[str, Array]) -> list[Array]:
        """Run with another model in the place of one segment."""
        session = load_segment(model, weights)
        healthy = self.kernels[device]

        def run(number: int, inputs: Sequence[Array]) -> Sequence[Array]:
            if number != segment:
                return healthy(number, inputs)
            found: Sequence[Array] = session.run(list(model.outputs), dict(zip(model.inputs, inputs, strict=True)))
            return found

        return self.run(kernels={device: run})

    def with_input(self, device: int, segment: int, place: int, change: Callable[[Array], Array]) -> list[Array]:
        """Run with one input of one segment changed on arrival."""
        healthy = self.kernels[device]

        def run(number: int, inputs: Sequence[Array]) -> Sequence[Array]:
            given = list(inputs)
            if number == segment:
                given[place] = np.ascontiguousarray(change(np.array(given[place])))
            return healthy(number, given)

        return self.run(kernels={device: run})
