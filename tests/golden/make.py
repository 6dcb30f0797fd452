"""Makes all golden files anew: runs every make_*.py beside this script (needs python3-torch)."""

import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
for script in sorted(here.glob("make_*.py")):
    subprocess.run([sys.executable, str(script)], cwd=here, check=True)
