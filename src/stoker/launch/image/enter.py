"""From this machine into the root of an image. This machine's Python runs it by its path, in namespaces made for it."""

import json
import os
import subprocess
import sys
import warnings  # noqa: F401  what os.execvpe imports cannot be found any more behind the new root

ENVIRONMENT = "STOKER_INSIDE"
"""The variable that carries the image's environment: what it says is for the image's programs alone."""
NOT_FOUND = 127  # as a shell says it


def main() -> int:
    mount, root, workdir, *command = sys.argv[1:]
    inside = json.loads(os.environ.pop(ENVIRONMENT))
    try:
        for folder, words in (("dev", ["--rbind", "/dev"]), ("proc", ["-t", "proc", "proc"])):
            os.makedirs(f"{root}/{folder}", exist_ok=True)
            if failed := subprocess.run([mount, *words, f"{root}/{folder}"]).returncode:
                return failed
        os.chroot(root)
        os.chdir(workdir)
        os.execvpe(command[0], command, inside)
    except OSError as e:
        print(f"stoker: the image cannot run {command[0]} in {workdir}: {e.strerror}", file=sys.stderr)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
