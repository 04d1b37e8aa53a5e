"""The messages of the API, made on first use from the description that the build leaves beside this file.

They live in a pool of their own, and no public signature shows them.
"""

from importlib.resources import files
from threading import Lock
from typing import Any

_loading = Lock()


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    with _loading:
        if name not in globals():
            _load()
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"the API has no message {name}") from None


def _load() -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    try:
        described = files("lockkeeper._core").joinpath("api.binpb").read_bytes()
    except FileNotFoundError:
        why = "lockkeeper was not built: its messages are described at build time; install it with pip, also from a checkout"
        raise ImportError(why) from None
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        pool.AddSerializedFile(file.SerializeToString())
        for message in file.message_type:
            found = pool.FindMessageTypeByName(f"{file.package}.{message.name}")
            globals()[message.name] = message_factory.GetMessageClass(found)
