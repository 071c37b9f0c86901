"""Models on the Hugging Face hub: a repository there holds the files of a finished run, and nothing else of it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from springwell.errors import UserError

FILES = ("config.json", "model.json", "model.safetensors")
HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def download(model_id: str, revision: str | None = None, **options: Any) -> Path:
    """The local copy of a model, ``options`` as for ``huggingface_hub.snapshot_download``."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        folder = Path(snapshot_download(model_id, revision=revision, allow_patterns=list(FILES), **options))
    except RepositoryNotFoundError:
        raise UserError(f"{model_id}: no such directory here, and no such public model on the hub") from None
    except RevisionNotFoundError:
        raise UserError(f"{model_id}@{revision}: the model has no such revision on the hub") from None
    except Exception as error:
        # The hub's client raises errors of several libraries; to the user they all say that the download failed.
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        raise UserError(f"{model_id}: no such directory here, and the hub cannot be reached ({reason})") from None
    if missing := [name for name in FILES if name != "model.json" and not (folder / name).exists()]:
        raise UserError(f"{model_id}: not a model of springwell (it has no {missing[0]})")
    return folder


def upload(
    folder: Path, repository: str, private: bool | None = None, token: str | bool | None = None, commit_message: str = ""
) -> str:
    """Uploads the files of a folder to ``owner/name``, which is made if it does not exist; returns the commit's address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    repo_id = api.create_repo(repository, private=private, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message or "Upload the model"))
