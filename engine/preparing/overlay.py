"""Overlays: splits and hops added to a read-only store, in a user-owned folder that links to it.

The folder is a whole store. Shards, and the splits and hops that are there, are links into the shared store; others are
made beside the links. Readers of a store read it as any other, and runs on either have the same numbers.
"""

import os
from dataclasses import replace
from pathlib import Path

from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import fingerprint_of
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import writing
from shoal.storage.files.names import place_in, require_name
from shoal.storage.store.manifest import NAME, read_manifest
from shoal.storage.store.store import IDS, hops_path, shard_path, split_path, stores_below

ROOT = "~/.cache/shoal/overlays"


def additions_go_elsewhere(store: Path, config: Config) -> bool:
    """Returns whether additions to a finished store go to an overlay: the config has one, or the store is read-only."""
    if not (store / NAME).exists():
        return False
    return config.data.overlay is not None or not os.access(store, os.W_OK, effective_ids=True)


def overlay_path(store: Path, config: Config) -> Path:
    """Returns the folder of the overlay of a finished store, the same for the same content wherever the store lies."""
    manifest = read_manifest(store)
    digits = fingerprint_of({"identity": manifest.identity, "published": manifest.published})
    root = Path(config.data.overlay or ROOT).expanduser().resolve()
    return root / f"{require_name(store / NAME, manifest.name)}-{len(manifest.clients)}-{digits}"


def make_overlay(store: Path, config: Config) -> Path:
    """Makes the overlay of a finished store, or brings its links up to date, and returns its folder."""
    overlay = overlay_path(store, config)
    say(f"{store}: what is missing of this store is made in {overlay}")
    for below in (store, *stores_below(store)):
        folder = overlay / below.relative_to(store)
        with writing(folder, "data.overlay"):
            _link(below.resolve(), folder)
    return overlay


def _link(store: Path, overlay: Path) -> None:
    shared = read_manifest(store)
    added = read_manifest(overlay) if (overlay / NAME).exists() else shared
    if added.clients != shared.clients or added.identity != shared.identity:
        raise ShoalError(overlay, f"was made of another store than {store}; delete that folder")
    both = replace(added, splits={**shared.splits, **added.splits}, hops={**shared.hops, **added.hops})
    files = [
        IDS,
        shard_path(0),
        *(split_path(name, 0) for name in both.splits),
        *(hops_path(name, 0) for name in both.hops),
    ]
    try:
        for folder in (file.parent for file in files):
            place_in(overlay, folder.parent)
            _link_folder(store / folder, overlay / folder)
    except OSError as error:
        raise ShoalError(overlay, f"cannot be written: {error.strerror}; set data.overlay to another folder") from None
    if both != added or not (overlay / NAME).exists():
        both.write(overlay)


def _link_folder(shared: Path, own: Path) -> None:
    """Links a folder, unless the overlay has a real one there; removes a link that leads nowhere."""
    if own.is_symlink():
        if shared.exists() and own.readlink() == shared:
            return
        own.unlink()
    if shared.exists() and not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        own.symlink_to(shared, target_is_directory=True)
