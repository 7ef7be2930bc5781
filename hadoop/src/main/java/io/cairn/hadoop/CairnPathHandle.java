package io.cairn.hadoop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.Options.HandleOpt;
import org.apache.hadoop.fs.PathHandle;

/** A file that is meant, whatever it is called by then or contains, as far as that is allowed. */
final class CairnPathHandle implements PathHandle {
    private static final long serialVersionUID = 1;
    private static final int MAGIC = 0x43414831;
    private static final int MAY_CHANGE = 1;
    private static final int MAY_MOVE = 2;
    private static final int HEAD = 4 + 4 + 8 + 8;

    final String path;
    final long inode;
    final long version;
    private final int allowed;

    CairnPathHandle(String path, long inode, long version, HandleOpt... options) {
        this.path = path;
        this.inode = inode;
        this.version = version;
        boolean change = HandleOpt.getOpt(HandleOpt.Data.class, options).orElse(HandleOpt.changed(false)).allowChange();
        boolean move = HandleOpt.getOpt(HandleOpt.Location.class, options).orElse(HandleOpt.moved(false)).allowChange();
        allowed = (change ? MAY_CHANGE : 0) | (move ? MAY_MOVE : 0);
    }

    CairnPathHandle(ByteBuffer given) throws InvalidPathHandleException {
        ByteBuffer from = given == null ? ByteBuffer.allocate(0) : given.duplicate();
        if (from.remaining() < HEAD || from.getInt() != MAGIC) {
            throw new InvalidPathHandleException("the handle is of another file system; make one of a status of this one");
        }
        allowed = from.getInt();
        inode = from.getLong();
        version = from.getLong();
        byte[] text = new byte[from.remaining()];
        from.get(text);
        path = new String(text, StandardCharsets.UTF_8);
    }

    boolean mayChange() {
        return (allowed & MAY_CHANGE) != 0;
    }

    boolean mayMove() {
        return (allowed & MAY_MOVE) != 0;
    }

    @Override
    public ByteBuffer bytes() {
        byte[] text = path.getBytes(StandardCharsets.UTF_8);
        ByteBuffer to = ByteBuffer.allocate(HEAD + text.length);
        to.putInt(MAGIC).putInt(allowed).putLong(inode).putLong(version).put(text).flip();
        return to;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof CairnPathHandle
                && Arrays.equals(bytes().array(), ((CairnPathHandle) other).bytes().array());
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(bytes().array());
    }

    @Override
    public String toString() {
        return path + " (inode " + inode + ", version " + version + ")";
    }
}
