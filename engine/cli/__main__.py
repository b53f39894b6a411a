"""`python -m engine.cli …` is `orrery …`."""

import sys

from engine.cli import main

sys.exit(main())
