package io.cairn.hadoop;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;

/** A directory that is being listed, part by part. Between the parts nothing is kept of it but where the next one begins. */
final class Listing implements RemoteIterator<FileStatus> {
    private final CairnNames fs;
    private final Path path;
    private final long volume;
    private final long directory;
    /** Where the next part begins; null at the end. */
    private byte[] after = new byte[0];
    private final ArrayDeque<FileStatus> ready = new ArrayDeque<>();

    /** What is known already. */
    static final class Known implements RemoteIterator<FileStatus> {
        private final Iterator<FileStatus> all;

        Known(List<FileStatus> all) {
            this.all = all.iterator();
        }

        @Override
        public boolean hasNext() {
            return all.hasNext();
        }

        @Override
        public FileStatus next() {
            return all.next();
        }
    }

    Listing(CairnNames fs, Path path, long volume, long directory) {
        this.fs = fs;
        this.path = path;
        this.volume = volume;
        this.directory = directory;
    }

    @Override
    public synchronized boolean hasNext() throws IOException {
        while (ready.isEmpty() && after != null) {
            Record.Page page = new Record.Page(Errors.check(Native.listEntries(volume, directory, after), path));
            after = page.next;
            for (Record.Entry entry : page.entries) {
                FileStatus status = fs.listed(entry, path);
                if (status != null) {
                    ready.add(status);
                }
            }
        }
        return !ready.isEmpty();
    }

    @Override
    public synchronized FileStatus next() throws IOException {
        if (!hasNext()) {
            throw new NoSuchElementException("no more entries of " + path);
        }
        return ready.remove();
    }
}
