"""``python -m sppo``."""

import sys

from sppo.cli import main

sys.exit(main())
