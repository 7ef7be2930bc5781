package io.cairn.hadoop;

import java.io.IOException;
import java.io.OutputStream;
import java.util.Locale;
import java.util.function.Consumer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;

/**
 * A file that is written from its beginning, or behind its end. What comes in pieces as large as the buffer goes down with one copy, smaller ones
 * are gathered first. hflush makes what was written visible to whoever opens the file, hsync durable as well; close does both.
 */
final class CairnOutputStream extends OutputStream implements Syncable, StreamCapabilities {
    /** Most that one call hands down: as much is in memory beside what is on its way. */
    private static final int STEP = 4 << 20;

    private final long file;
    private final Path path;
    private final FileSystem.Statistics statistics;
    private final byte[] single = new byte[1];
    private final int bufferSize;
    private final Consumer<CairnOutputStream> whenClosed;
    /** The volume in which it made the file, so that what it writes has its place whatever others append; 0: it did not make it. */
    private final long madeIn;
    private byte[] buffer;
    private int gathered;
    /** Where the next byte that goes down has its place. */
    private long position;
    private volatile boolean closed;
    private volatile boolean shutOut;
    /** What failed: nothing is written behind a gap, or twice. */
    private IOException broken;

    CairnOutputStream(long file, Path path, long position, long madeIn, int bufferSize, FileSystem.Statistics statistics,
            Consumer<CairnOutputStream> whenClosed) {
        this.madeIn = madeIn;
        this.whenClosed = whenClosed;
        this.file = file;
        this.path = path;
        this.position = position;
        this.bufferSize = bufferSize;
        this.statistics = statistics;
    }

    private void checkOpen() throws IOException {
        if (closed) {
            throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
        }
        if (broken != null) {
            throw new IOException(path + ": an earlier write failed, and what was to follow it is not known to be in its place; "
                    + "write the file anew (" + broken.getMessage() + ")", broken);
        }
    }

    @Override
    public synchronized void write(int value) throws IOException {
        single[0] = (byte) value;
        write(single, 0, 1);
    }

    @Override
    public synchronized void write(byte[] from, int at, int length) throws IOException {
        checkOpen();
        if (at < 0 || length < 0 || length > from.length - at) {
            throw new IndexOutOfBoundsException("range " + at + "+" + length + " of " + from.length);
        }
        if (length >= bufferSize) {
            hand();
            down(from, at, length);
        } else if (length > 0) {
            if (gathered + length > bufferSize) {
                hand();
            }
            if (buffer == null) {
                buffer = new byte[bufferSize];
            }
            System.arraycopy(from, at, buffer, gathered, length);
            gathered += length;
        }
        if (statistics != null) {
            statistics.incrementBytesWritten(length);
        }
    }

    /** Hands down what was gathered. */
    private void hand() throws IOException {
        if (gathered > 0) {
            int length = gathered;
            down(buffer, 0, length);
            gathered = 0;
        }
    }

    private void down(byte[] from, int at, int length) throws IOException {
        for (int done = 0; done < length;) {
            int step = Math.min(STEP, length - done);
            if (Native.write(file, position, from, at + done, step) < 0) {
                broken = Errors.of(path);
                throw broken;
            }
            position += step;
            done += step;
        }
    }

    @Override
    public synchronized void flush() throws IOException {
        if (!closed) {
            checkOpen();
            hand();
        }
    }

    @Override
    public void hflush() throws IOException {
        settle(false);
    }

    @Override
    public void hsync() throws IOException {
        settle(true);
    }

    private synchronized void settle(boolean durable) throws IOException {
        checkOpen();
        hand();
        if (Native.flush(file, durable) < 0) {
            Errors.Failure failure = Errors.last();
            if (failure.is(Errors.ESTALE)) {
                // Somebody else goes on with the file: nothing more goes into it.
                broken = failure.of(path);
                throw broken;
            }
            throw failure.of(path);
        }
    }

    Path path() {
        return path;
    }

    /** The file's lease was recovered; the next flush is refused. */
    void shutOut() {
        shutOut = true;
    }

    /** Whether what it writes would go over what others append to that file, which may have another name by now. */
    boolean writesAtOffsets(long volume, long inode) {
        if (madeIn != volume || closed || shutOut) {
            return false;
        }
        byte[] found = Native.statFile(file);
        // What cannot be told is no leave to write over it.
        return found == null || Record.metadata(found).inode == inode;
    }

    /** Whether a failure was thrown after which nothing more is written. */
    synchronized boolean isBroken() {
        return broken != null;
    }

    boolean isShutOut() {
        return shutOut;
    }

    @Override
    public boolean hasCapability(String capability) {
        switch (capability.toLowerCase(Locale.ENGLISH)) {
            case StreamCapabilities.HFLUSH:
            case StreamCapabilities.HSYNC:
                return true;
            default:
                return false;
        }
    }

    @Override
    public synchronized void close() throws IOException {
        if (closed) {
            return;
        }
        IOException failed = broken;
        try {
            if (broken == null) {
                hand();
            }
        } catch (IOException e) {
            failed = e;
        }
        closed = true;
        buffer = null;
        whenClosed.accept(this);
        if (Native.close(file) < 0) {
            IOException error = Errors.of(path);
            if (failed == null) {
                failed = error;
            } else {
                failed.addSuppressed(error);
            }
        }
        if (failed != null) {
            throw failed;
        }
    }
}
