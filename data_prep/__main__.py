"""`python -m data_prep SOURCE … --out FILE`, `python -m data_prep inspect|verify FILE`. See --help."""

import sys

from data_prep.cli import main

if __name__ == "__main__":
    sys.exit(main())
