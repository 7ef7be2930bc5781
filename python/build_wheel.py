#!/usr/bin/env python3
"""Makes the wheel: the package with libcairn.so in it, for the machine that it runs on. It needs nothing but Python.

    build_wheel.py LIBRARY DIRECTORY

prints the path of the wheel. No C is compiled and no Python interface is linked: one wheel is for all CPython 3 from 3.9 on.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def main(library, directory):
    manifest = (HERE.parent / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"', manifest, re.MULTILINE).group(1)
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"cairn_fs-{version}.dist-info"
    files = {f"cairn/{path.name}": path.read_bytes() for path in sorted((HERE / "cairn").glob("*.py"))}
    files["cairn/libcairn.so"] = pathlib.Path(library).read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: cairn-fs\nVersion: {version}\nSummary: Files of a Cairn volume\n"
        "License: Apache-2.0\nRequires-Python: >=3.9\nProvides-Extra: fsspec\nRequires-Dist: fsspec; extra == 'fsspec'\n"
    ).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: build_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = b"[fsspec.specs]\ncairn = cairn.fs:CairnFileSystem\n"
    record = f"{info}/RECORD"
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    lines = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()] + [f"{record},,"]
    files[record] = ("\n".join(lines) + "\n").encode()
    wheel = pathlib.Path(directory) / f"cairn_fs-{version}-{tag}.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name, data in files.items():
            # The same bytes give the same wheel.
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
