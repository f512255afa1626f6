"""`python -m octavo`. Owns nothing; must never know more than `octavo.cli`."""

from octavo.cli import main

raise SystemExit(main())
