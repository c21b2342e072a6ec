"""Changes the root to an unpacked image and runs a command there. Run by path with this machine's Python, in its own
namespaces."""

import json
import os
import subprocess
import sys
import warnings  # noqa: F401  os.execvpe imports it, which fails after chroot

ENVIRONMENT = "STOKER_INSIDE"
"""The variable with the image's environment, as JSON."""
NOT_FOUND = 127  # as a shell exits


def main() -> int:
    mount, root, workdir, *command = sys.argv[1:]
    inside = json.loads(os.environ.pop(ENVIRONMENT))
    try:
        for folder, options in (("dev", ["--rbind", "/dev"]), ("proc", ["-t", "proc", "proc"])):
            os.makedirs(f"{root}/{folder}", exist_ok=True)
            if failed := subprocess.run([mount, *options, f"{root}/{folder}"]).returncode:
                return failed
        os.chroot(root)
        os.chdir(workdir)
        os.execvpe(command[0], command, inside)
    except OSError as e:
        print(f"stoker: the image cannot run {command[0]} in {workdir}: {e.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
