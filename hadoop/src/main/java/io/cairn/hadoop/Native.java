package io.cairn.hadoop;

import java.nio.ByteBuffer;

/**
 * The native methods, in crates/jni. Paths and names are bytes, in UTF-8. What fails answers a negative number, 0 where a number of
 * something opened is expected, or null, and {@link #lastError} has the reason; {@link Errors} makes exceptions of it.
 */
final class Native {
    /** Bits of the flags of connect. */
    static final int READ_ONLY = 1;
    static final int CLOSE_VISIBLE = 2;

    /** What change does. */
    static final int MAKE_DIRECTORY = 0;
    static final int REMOVE_FILE = 1;
    static final int REMOVE_DIRECTORY = 2;
    static final int REMOVE_TREE = 3;
    static final int ACCESS = 4;

    /** Flags of open(2) on Linux. */
    static final int O_RDONLY = 0;
    static final int O_WRONLY = 1;
    static final int O_CREAT = 0100;
    static final int O_EXCL = 0200;
    static final int O_TRUNC = 01000;
    static final int O_APPEND = 02000;
    /** With O_CREAT: an existing file gives way to a new one. */
    static final int REPLACE = 1 << 30;

    /** Leave it as it is. */
    static final long SAME = Long.MIN_VALUE;

    static {
        NativeLibrary.load();
    }

    private Native() {
    }

    static native byte[] lastError();

    static native byte[] version();

    static native int panic();

    static native byte[] copies();

    static native long connect(byte[] cluster, byte[] volume, byte[] rack, int flags, long timeoutMs,
            long connectTimeoutMs, long memoryMax, byte[] key, byte[] keyFrom);

    static native byte[] ownKey(byte[] cluster);

    static native int disconnect(long volume);

    static native byte[] stat(long volume, byte[] path, boolean follow);

    static native int change(long volume, byte[] path, int what, int mode);

    static native int rename(long volume, byte[] from, byte[] to, boolean replace);

    static native int symlink(long volume, byte[] target, byte[] link);

    static native byte[] readLink(long volume, byte[] path);

    static native int setMetadata(long volume, byte[] path, int mode, long uid, long gid, long size, long accessed,
            long modified);

    static native byte[] getXattr(long volume, byte[] path, byte[] name);

    static native int setXattr(long volume, byte[] path, byte[] name, byte[] value, int flags);

    static native byte[] listXattrs(long volume, byte[] path);

    static native int removeXattr(long volume, byte[] path, byte[] name);

    static native int fence(long volume, byte[] path, byte[] mark);

    static native long openDirectory(long volume, byte[] path);

    static native byte[] listEntries(long volume, long directory, byte[] after);

    static native byte[] places(long volume, byte[] path, long offset, long length);

    static native byte[] quota(long volume, byte[] path);

    static native byte[] space(long volume);

    static native byte[] volumes(long volume);

    static native byte[] nameOf(int id, boolean group);

    static native long idOf(byte[] name, boolean group);

    static native long open(long volume, byte[] path, int flags, int mode);

    static native long openInode(long volume, long inode);

    static native int read(long file, long offset, byte[] to, int at, int length);

    static native int readDirect(long file, long offset, ByteBuffer to, int at, int length);

    static native int write(long file, long offset, byte[] from, int at, int length);

    static native int flush(long file, boolean durable);

    static native int close(long file);

    static native byte[] statFile(long file);

    static native long crc32c(long file, long length);

    static native long appendFrom(long file, long source);
}
