"""What stream sockets promise, case by case.

  semantics.py serve PORT              the far ends
  semantics.py run CID PORT [CASE...]  the near ends, all cases or those named
"""
import sys

import ends
import readiness  # noqa: F401 - brings its cases
import transfer  # noqa: F401 - brings its cases

if sys.argv[1] == "serve":
    ends.serve(int(sys.argv[2]))
else:
    ends.run(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
