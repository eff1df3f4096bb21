"""Python's garbage collector beside a long run.

Whenever the old objects have grown by a quarter, the collector walks all that are alive. The libraries,
engine and learner of a run are 700,000 objects, 0.4 s a walk, in the midst of whatever stage it meets. They
do not become garbage while the run lasts: they are walked once, and then left out.
"""

from __future__ import annotations

import gc


class Standing:
    """What stands for the rest of a run, which the collector leaves out from then on."""

    def __init__(self) -> None:
        self.settled = False

    def settle(self) -> None:
        """Collect what is garbage now, and leave out what is not; once, later calls do nothing."""
        if not self.settled:
            gc.collect()
            gc.freeze()
            self.settled = True

    def close(self) -> None:
        """Walk everything again."""
        if self.settled:
            gc.unfreeze()
            self.settled = False
