"""The child process that parses policies for a daemon, so that its requests do not wait for a parser."""

import os
import sys
from typing import Final

from coatcheck.platform.process_memory import die_with_parent
from coatcheck.policy.parsing import answer

NICENESS: Final = 5
"""The policy in force goes on serving; a new one may come a moment later."""

if __name__ == "__main__":
    die_with_parent()
    os.nice(NICENESS)
    answer(sys.stdin.buffer, sys.stdout.buffer)
