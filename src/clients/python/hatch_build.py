"""Describes the messages of the API at build time: `lockkeeper/_core/api.binpb`, a descriptor set.

A description rather than generated code: the client makes its message classes from it in a pool of their own. So it works with every
release of protobuf that it names, whatever made the description, and it does not clash with classes that a program generated from the same
files.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

API = ("sessions", "locks", "errors")
PLACE = "lockkeeper/_core/api.binpb"


class DescribeMessages(BuildHookInterface):  # type: ignore[type-arg]
    """The hook of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        from grpc_tools import protoc

        root = Path(self.root)
        # In a source distribution the files of the API lie beside this one, in the repository at its root.
        places = [root / "proto", root.parents[2] / "proto"] if len(root.parents) > 2 else [root / "proto"]
        proto = next((place for place in places if (place / "lockkeeper/v1/locks.proto").is_file()), None)
        if proto is None:
            raise FileNotFoundError(
                f"proto/lockkeeper/v1 is in none of {places}: build from the repository or from its sdist"
            )
        # Beside the wheel, and not in the source: several builds may run at once.
        made = Path(self.directory) / "api.binpb"
        made.parent.mkdir(parents=True, exist_ok=True)
        wanted = [f"lockkeeper/v1/{name}.proto" for name in API]
        arguments = [
            "protoc",
            f"-I{proto}",
            f"-I{root / 'wire'}",
            f"--descriptor_set_out={made}",
            *wanted,
            "status.proto",
        ]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc failed: {arguments}")
        build_data["force_include"][str(made)] = PLACE
