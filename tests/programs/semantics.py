"""What stream sockets promise, case by case.

  semantics.py serve PORT                    the far ends
  semantics.py run|slow CID PORT [CASE...]   the near ends, all cases or those named

`slow`: an end names its rings' pages byte by byte, and Linux gives a connect a second for that, so
rings beyond a MiB are left out; every notice takes its time, so there are fewer connects in sequence.
"""
import sys

import ends
import readiness  # noqa: F401 - brings its cases
import transfer  # noqa: F401 - brings its cases

if sys.argv[1] == "serve":
    ends.serve(int(sys.argv[2]))
else:
    ends.run(int(sys.argv[2]), int(sys.argv[3]), sys.argv[1] == "slow", sys.argv[4:])
