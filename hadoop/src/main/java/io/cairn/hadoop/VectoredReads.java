package io.cairn.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.Path;

/** Ranges that are read at the same time, for all files of the process. */
final class VectoredReads {
    /** Reads at the same time; each waits for the network. */
    private static final int THREADS = 16;
    /** Ranges that wait; whoever comes then reads them itself. */
    private static final int WAITING_MAX = 4096;
    private static final AtomicInteger NUMBER = new AtomicInteger();
    private static final ThreadPoolExecutor POOL = pool();

    private VectoredReads() {
    }

    private static ThreadPoolExecutor pool() {
        ThreadPoolExecutor pool = new ThreadPoolExecutor(THREADS, THREADS, 10, TimeUnit.SECONDS,
                new LinkedBlockingQueue<>(WAITING_MAX), work -> {
                    Thread thread = new Thread(work, "cairn-vectored-read-" + NUMBER.incrementAndGet());
                    thread.setDaemon(true);
                    return thread;
                }, new ThreadPoolExecutor.CallerRunsPolicy());
        pool.allowCoreThreadTimeOut(true);
        return pool;
    }

    static void run(Runnable read) {
        POOL.execute(read);
    }

    static long end(List<? extends FileRange> ranges) {
        long end = 0;
        for (FileRange range : ranges) {
            end = Math.max(end, range.getOffset() + range.getLength());
        }
        return end;
    }

    /** The ranges in the order of the file, if all are within it and none overlaps another. */
    static List<FileRange> checked(List<? extends FileRange> ranges, Path path, long length) throws IOException {
        List<FileRange> sorted = new ArrayList<>(ranges);
        for (FileRange range : sorted) {
            if (range.getLength() < 0) {
                throw new IllegalArgumentException(path + ": the length of a range is negative: " + range);
            }
            if (range.getOffset() < 0) {
                throw new EOFException(path + ": the offset of a range is negative: " + range);
            }
            if (range.getOffset() + range.getLength() > length) {
                throw new EOFException(path + ": a range ends behind the file, which has " + length + " bytes: " + range);
            }
        }
        sorted.sort(Comparator.comparingLong(FileRange::getOffset));
        for (int i = 1; i < sorted.size(); i++) {
            FileRange before = sorted.get(i - 1);
            if (before.getOffset() + before.getLength() > sorted.get(i).getOffset()) {
                throw new IllegalArgumentException(path + ": ranges overlap: " + before + " and " + sorted.get(i));
            }
        }
        return sorted;
    }
}
