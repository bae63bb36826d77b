from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Optional

from .._program_module import refuse
from .._serving import serve
from .config import Refused, Settings
from .checkpoint_contents import worker_program
from .evaluator import Evaluator
from .process import end_orphans
from .servers import log


def main() -> None:
    try:
        worker_program()
        evaluator = Evaluator(Settings.from_environment())
    except Refused as error:
        refuse(str(error))
    ended = end_orphans()
    if ended:
        log(f"killed {ended} processes of servers whose evaluator has ended")

    def leave(number: int, frame: Optional[FrameType]) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    try:
        serve(evaluator)
    finally:
        evaluator.close()


if __name__ == "__main__":
    main()
