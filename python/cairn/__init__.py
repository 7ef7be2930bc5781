"""Files of a Cairn volume for Python programs.

    import cairn

    with cairn.connect("127.0.0.1:7400") as volume:
        volume.makedirs("/notes", exist_ok=True)
        with volume.open("/notes/first.txt", "w") as file:
            file.write("hello\\n")

Calls fail with the OSError that the same call of `os` would raise (FileNotFoundError, PermissionError, ...): `errno` and `filename`
are set, and the text says the cause and the next step. Blocking calls let other threads run. Threads may share volumes and files.

A child made by fork may use a volume of its parent: it connects anew. Files that were open fail there with EBADF. A volume can be pickled,
which is how it gets into processes made by spawn: it connects again there.
"""

from ._library import version as _version
from ._volume import DirEntry, Host, Place, Space, Volume, connect
from ._file import File

__version__ = _version()
__all__ = ["DirEntry", "File", "Host", "Place", "Space", "Volume", "connect"]
