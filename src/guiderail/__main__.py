"""`python -m guiderail` is `guiderail`."""

import sys

from guiderail.cli import main

sys.exit(main())
