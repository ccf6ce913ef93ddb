"""``python -m cords_dp``."""

import sys

from cords_dp.cli import main

sys.exit(main())
