"""usage: test_damaged.py DAMAGE_HEADERS

Damages every header of tests/data/archs/peer.npz in every way that oato-damage-headers knows.
"""

import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    sys.exit(77)

ARCHS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "archs")

with tempfile.TemporaryDirectory() as work, np.load(os.path.join(ARCHS, "peer.npz")) as data:
    headers = []
    for key in data.files:
        name, what = key.rsplit(".", 1)
        if what == "header":
            headers.append(os.path.join(work, name))
            data[key].tofile(headers[-1])
    sys.exit(subprocess.run([sys.argv[1], *headers], check=False).returncode)
