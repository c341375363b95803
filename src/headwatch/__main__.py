"""``python -m headwatch``."""

from headwatch.cli import main

if __name__ == "__main__":
    main()
