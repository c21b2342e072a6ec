"""Print the Python, libc and packages of this image for /opt/stoker/base.json, which `stoker image` reads."""

import json
import platform
from importlib import metadata

libc, version = platform.libc_ver()
description = {
    "python": ".".join(platform.python_version_tuple()[:2]),
    "libc": f"{libc} {version}".strip(),  # empty for musl, which Stoker finds in the layers
    "packages": {
        package.metadata["Name"]: package.version for package in metadata.distributions() if package.metadata["Name"]
    },
}
print(json.dumps(description, indent=1, sort_keys=True))
