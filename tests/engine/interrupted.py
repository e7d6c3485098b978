"""A process that generates while another one interrupts it; see `test_interrupts`.

The main thread generates again and again, a second thread waits its turn to do the same. Every
Ctrl-C is answered by a line, sent by the second thread once it has generated something after it.
The argument is how many are to come.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

from fake_engine import fake_llm
from suffice import SamplingParams

PARAMS = SamplingParams(max_tokens=3, ignore_eos=True)


class Interrupted:
    """Counts interruptions, and what the second thread has done since."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.armed = False
        self.failed: BaseException | None = None
        self.llm = fake_llm()
        # What is imported at the first use must be there: an interrupted import stays broken.
        self.llm.generate("ab", PARAMS, use_tqdm=False)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the main thread, unless it has just been and is on its way to generate."""
        self.count += 1
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def wait_and_answer(self) -> None:
        """Generate in turns with the main thread."""
        answered = 0
        while answered < self.most:
            seen = self.count
            self.llm.generate("ab", PARAMS, use_tqdm=False)
            if seen > answered:
                answered = seen
                print(answered, flush=True)

    def generate(self) -> None:
        """Generate until all interruptions have come, or be interrupted."""
        try:
            self.armed = True
            while self.count < self.most:
                self.llm.generate("ab", PARAMS, use_tqdm=False)
        except KeyboardInterrupt:
            pass


def main() -> None:
    sys.setswitchinterval(1e-4)
    interrupted = Interrupted(int(sys.argv[1]))
    signal.signal(signal.SIGINT, interrupted.handle)
    second = threading.Thread(target=interrupted.wait_and_answer, daemon=True)
    second.start()
    print("ready", flush=True)
    while interrupted.count < interrupted.most:
        interrupted.generate()
    second.join(20)


if __name__ == "__main__":
    main()
