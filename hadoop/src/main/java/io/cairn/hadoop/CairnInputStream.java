package io.cairn.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.ByteBufferPositionedReadable;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;

/**
 * A file that is read. What is asked for in pieces as large as the buffer, by positions, or into direct buffers goes there with one copy; small
 * reads come out of the buffer. Reads by positions may run in any number of threads; the position of the stream is of one.
 */
final class CairnInputStream extends FSInputStream
        implements ByteBufferReadable, ByteBufferPositionedReadable, CanUnbuffer, StreamCapabilities {
    private final long file;
    private final Path path;
    private final FileSystem.Statistics statistics;
    private final int bufferSize;
    private final Leftovers.Leftover leftover;
    private volatile boolean closed;
    /** As it was last known; a file may grow while it is read. */
    private volatile long length;
    private long position;
    private byte[] buffer;
    /** Where in the file the buffer begins, and how many bytes of it are filled. */
    private long bufferBegin;
    private int filled;

    CairnInputStream(long file, Path path, int bufferSize, FileSystem.Statistics statistics) throws IOException {
        this.file = file;
        this.path = path;
        this.bufferSize = bufferSize;
        this.statistics = statistics;
        this.length = Record.metadata(Errors.check(Native.statFile(file), path)).size;
        leftover = Leftovers.watch(this, file);
    }

    boolean isEmpty() {
        return length == 0;
    }

    private void checkOpen() throws IOException {
        if (closed) {
            throw new IOException(path + ": " + FSExceptionMessages.STREAM_IS_CLOSED);
        }
    }

    /** What a read came to. One that was under way when somebody closed the stream says so, whichever of the two the library saw first. */
    private int checkRead(int outcome) throws IOException {
        if (outcome < 0) {
            IOException failure = Errors.of(path);
            checkOpen();
            throw failure;
        }
        return outcome;
    }

    /** The length, asked again if it was less than that. */
    private long lengthUpTo(long wanted) throws IOException {
        if (wanted > length) {
            length = Record.metadata(Errors.check(Native.statFile(file), path)).size;
        }
        return length;
    }

    private void count(int bytes) {
        if (statistics != null && bytes > 0) {
            statistics.incrementBytesRead(bytes);
        }
    }

    @Override
    public synchronized void seek(long to) throws IOException {
        checkOpen();
        if (to < 0) {
            throw new EOFException(path + ": " + FSExceptionMessages.NEGATIVE_SEEK + " " + to);
        }
        if (to > lengthUpTo(to)) {
            throw new EOFException(path + ": " + FSExceptionMessages.CANNOT_SEEK_PAST_EOF + " " + to);
        }
        position = to;
    }

    @Override
    public synchronized long getPos() throws IOException {
        return position;
    }

    @Override
    public boolean seekToNewSource(long target) throws IOException {
        checkOpen();
        // Whoever has the bytes right is found by each read.
        return false;
    }

    @Override
    public synchronized int available() throws IOException {
        checkOpen();
        return (int) Math.min(Integer.MAX_VALUE, Math.max(0, lengthUpTo(position + 1) - position));
    }

    private int inBuffer() {
        long ahead = position - bufferBegin;
        return ahead >= 0 && ahead < filled ? (int) (filled - ahead) : 0;
    }

    private boolean fill() throws IOException {
        if (buffer == null) {
            buffer = new byte[bufferSize];
        }
        filled = 0;
        int got = checkRead(Native.read(file, position, buffer, 0, buffer.length));
        bufferBegin = position;
        filled = got;
        return got > 0;
    }

    @Override
    public synchronized int read() throws IOException {
        checkOpen();
        if (inBuffer() == 0 && !fill()) {
            return -1;
        }
        int value = buffer[(int) (position - bufferBegin)] & 0xff;
        position++;
        count(1);
        return value;
    }

    @Override
    public synchronized int read(byte[] to, int at, int wanted) throws IOException {
        checkOpen();
        if (at < 0 || wanted < 0 || wanted > to.length - at) {
            throw new IndexOutOfBoundsException("range " + at + "+" + wanted + " of " + to.length);
        }
        if (wanted == 0) {
            return 0;
        }
        int ready = inBuffer();
        if (ready == 0 && wanted >= bufferSize) {
            int got = checkRead(Native.read(file, position, to, at, wanted));
            position += got;
            count(got);
            return got == 0 ? -1 : got;
        }
        if (ready == 0) {
            if (!fill()) {
                return -1;
            }
            ready = inBuffer();
        }
        int taken = Math.min(ready, wanted);
        System.arraycopy(buffer, (int) (position - bufferBegin), to, at, taken);
        position += taken;
        count(taken);
        return taken;
    }

    @Override
    public synchronized int read(ByteBuffer to) throws IOException {
        checkOpen();
        if (!to.hasRemaining()) {
            return 0;
        }
        int ready = inBuffer();
        if (ready > 0) {
            int taken = Math.min(ready, to.remaining());
            to.put(buffer, (int) (position - bufferBegin), taken);
            position += taken;
            count(taken);
            return taken;
        }
        int got = readAt(position, to);
        if (got > 0) {
            position += got;
        }
        return got;
    }

    /** Until the buffer is full or the file ends; −1 at its end. */
    private int readAt(long from, ByteBuffer to) throws IOException {
        int wanted = to.remaining();
        if (wanted == 0) {
            return 0;
        }
        int got;
        if (to.isReadOnly()) {
            throw new java.nio.ReadOnlyBufferException();
        } else if (to.isDirect()) {
            got = checkRead(Native.readDirect(file, from, to, to.position(), wanted));
        } else {
            got = checkRead(Native.read(file, from, to.array(), to.arrayOffset() + to.position(), wanted));
        }
        to.position(to.position() + got);
        count(got);
        return got == 0 ? -1 : got;
    }

    @Override
    public int read(long from, byte[] to, int at, int wanted) throws IOException {
        checkOpen();
        validatePositionedReadArgs(from, to, at, wanted);
        if (at < 0) {
            throw new IndexOutOfBoundsException("range " + at + "+" + wanted + " of " + to.length);
        }
        if (wanted == 0) {
            return 0;
        }
        int got = checkRead(Native.read(file, from, to, at, wanted));
        count(got);
        return got == 0 ? -1 : got;
    }

    @Override
    public int read(long from, ByteBuffer to) throws IOException {
        checkOpen();
        if (from < 0) {
            throw new EOFException(path + ": " + FSExceptionMessages.NEGATIVE_SEEK + " " + from);
        }
        return readAt(from, to);
    }

    @Override
    public void readFully(long from, ByteBuffer to) throws IOException {
        int wanted = to.remaining();
        if (wanted > 0 && read(from, to) < wanted) {
            throw new EOFException(path + ": " + FSExceptionMessages.EOF_IN_READ_FULLY);
        }
    }

    /** All ranges at once, each into its buffer with one copy. Hadoop from 3.3.5 on calls it. */
    @Override
    public void readVectored(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate) throws IOException {
        checkOpen();
        for (FileRange range : VectoredReads.checked(ranges, path, lengthUpTo(VectoredReads.end(ranges)))) {
            CompletableFuture<ByteBuffer> outcome = new CompletableFuture<>();
            range.setData(outcome);
            VectoredReads.run(() -> {
                try {
                    ByteBuffer to = allocate.apply(range.getLength());
                    int begin = to.position();
                    to.limit(begin + range.getLength());
                    readFully(range.getOffset(), to);
                    to.position(begin);
                    outcome.complete(to);
                } catch (Throwable e) {
                    outcome.completeExceptionally(e);
                }
            });
        }
    }

    /** CRC-32C of the first bytes of the file. */
    int crc32c(long first) throws IOException {
        checkOpen();
        return (int) Errors.check(Native.crc32c(file, first), path);
    }

    @Override
    public synchronized void unbuffer() {
        buffer = null;
        filled = 0;
    }

    @Override
    public boolean hasCapability(String capability) {
        switch (capability.toLowerCase(Locale.ENGLISH)) {
            case StreamCapabilities.READBYTEBUFFER:
            case StreamCapabilities.PREADBYTEBUFFER:
            case StreamCapabilities.UNBUFFER:
            case "in:readvectored":
                return true;
            default:
                return false;
        }
    }

    @Override
    public void close() throws IOException {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            buffer = null;
            filled = 0;
        }
        leftover.forget();
        // It may have been closed with the file system.
        if (Native.close(file) < 0) {
            Errors.Failure failure = Errors.last();
            if (!failure.is(9)) {
                throw failure.of(path);
            }
        }
    }
}
