"""Modules of this folder by name, whatever the working directory."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
