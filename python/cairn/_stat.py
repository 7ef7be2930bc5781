"""Attributes as `os` has them."""

import os


def stat_result(found):
    """An os.stat_result. `st_dev` is 0: volumes are no devices."""
    times = [found.atime_ns, found.mtime_ns, found.ctime_ns]
    seconds = [ns // 1_000_000_000 for ns in times]
    visible = (found.mode, found.ino, 0, found.nlink, found.uid, found.gid, found.size, *seconds)
    more = {"st_blocks": found.blocks, "st_blksize": 1 << 20, "st_rdev": 0}
    for name, ns in zip(("st_atime", "st_mtime", "st_ctime"), times):
        more[name] = ns / 1e9
        more[name + "_ns"] = ns
    return os.stat_result(visible, more)
