"""Print what this Python has, as /opt/stoker/base.json: `stoker image` reads that instead of gigabytes of layers."""

import json
import platform
from importlib import metadata

kind, version = platform.libc_ver()
about = {
    "python": ".".join(platform.python_version_tuple()[:2]),
    "libc": f"{kind} {version}".strip(),  # musl does not say: it is found in the layers
    "packages": {one.metadata["Name"]: one.version for one in metadata.distributions() if one.metadata["Name"]},
}
print(json.dumps(about, indent=1, sort_keys=True))
