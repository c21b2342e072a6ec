"""Uploads an exported folder to a hub."""

import re
import shlex
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError

from stoker.data.tokenizer import reachable
from stoker.spec.errors import UserError, first_line


def require_hub(repo: str) -> None:
    """Before the export: check that the upload can work."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", repo):
        raise UserError(f"--push {repo} is not a name on a hub", remedy="Write it as OWNER/NAME")
    if get_token() is None:
        raise UserError(
            f"--push {repo} needs a token, and HF_TOKEN is not set", remedy="Set HF_TOKEN to one that may write"
        )
    if not reachable(constants.ENDPOINT):
        raise UserError(
            f"the hub ({constants.ENDPOINT}) cannot be reached", remedy="Check the network, or set HF_ENDPOINT"
        )


def push(folder: Path, repo: str) -> str:
    """Upload the folder and return its address. A new repository is private."""
    api = HfApi()
    try:
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=f"Export of {folder.name}")
    except Exception as e:  # the client also raises errors of its HTTP library
        denied = isinstance(e, HfHubHTTPError) and e.response.status_code in (401, 403)
        again = f"Try again with: hf upload {repo} {shlex.quote(str(folder))}"
        raise UserError(
            f"{folder} is exported, but the upload to {repo} failed: {first_line(e)}",
            remedy="Give a token that may write there" if denied else again,
        ) from e
    return str(address)
