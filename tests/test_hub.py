"""Models on the Hugging Face hub, with the network replaced."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from springwell.app.api import load
from springwell.errors import UserError
from tests.images import small_model

FILES = {"config.json", "model.json", "model.safetensors", "README.md"}


@pytest.fixture(scope="module")
def model():
    return small_model()


def test_a_saved_model_draws_the_same_bits(model, tmp_path):
    model.save(tmp_path / "saved")
    assert {p.name for p in (tmp_path / "saved").iterdir()} == FILES
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == model.metadata["config"]
    card = (tmp_path / "saved" / "README.md").read_text()
    for words in ("library_name: springwell", "license: mit", "springwell train digits", "UCI repository, CC BY 4.0"):
        assert words in card
    again = load(tmp_path / "saved")
    assert again.metadata == model.metadata
    assert again.iteration == 7
    assert torch.equal(again.sample(9, seed=4), model.sample(9, seed=4))


def test_saving_again_replaces_the_model_and_keeps_a_card_of_ones_own(model, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "config.json").write_text("{}")
    model.save(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    assert load(tmp_path).metadata == model.metadata


def test_push_uploads_the_folder_and_nothing_else(model, monkeypatch):
    pushed = {}

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, **_):
            pushed[repo_id] = {p.name: p.read_bytes() for p in Path(folder_path).iterdir()}
            return "url"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert model.push_to_hub("me/small") == "url"
    assert pushed["me/small"].keys() == FILES
    assert json.loads(pushed["me/small"]["config.json"]) == model.metadata["config"]
    assert b"/tmp" not in pushed["me/small"]["README.md"]


def test_load_downloads_the_model_files_of_a_revision(model, tmp_path, monkeypatch):
    model.save(tmp_path / "remote")
    asked = []

    def snapshot_download(repo_id, revision=None, allow_patterns=None, **_):
        asked.append((repo_id, revision, set(allow_patterns)))
        local = tmp_path / "cache" / (revision or "main")
        local.mkdir(parents=True)
        for name in allow_patterns:
            shutil.copy(tmp_path / "remote" / name, local)
        return str(local)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    expected = model.sample(9)
    assert torch.equal(load("me/small").sample(9), expected)
    assert torch.equal(load("me/small@v1.0").sample(9), expected)
    assert asked == [("me/small", revision, FILES - {"README.md"}) for revision in (None, "v1.0")]


def test_load_reads_the_hubs_own_cache(model, tmp_path):
    """The layout of huggingface_hub's cache, without network."""
    repository = tmp_path / "models--me--small"
    commit = "0" * 40
    model.save(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    again = load("me/small", cache_dir=tmp_path, local_files_only=True)
    assert torch.equal(again.sample(9), model.sample(9))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            LocalEntryNotFoundError("no network\nmany lines"),
            r"the hub cannot be reached \(LocalEntryNotFoundError: no network\)$",
        ),
        (ConnectionError(), r"the hub cannot be reached \(ConnectionError: no message\)$"),
        (
            RepositoryNotFoundError.__new__(RepositoryNotFoundError),
            "no such directory here, and no such public model on the hub",
        ),
    ],
)
def test_a_failed_download_is_one_line(monkeypatch, error, words):
    def snapshot_download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(UserError, match=f"^runs/typo: {words}" if "here" in words else f"^runs/typo: .*{words}"):
        load("runs/typo")


def test_a_foreign_repository_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(UserError, match=r"some/one: not a model of springwell \(it has no config.json\)"):
        load("some/one")
