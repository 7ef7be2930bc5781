package io.cairn.hadoop;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;

/** A directory that is being listed, part by part. It is closed at its end; one that is left before goes with its file system. */
final class Listing implements RemoteIterator<FileStatus> {
    private final CairnNames fs;
    private final Path path;
    /** 0 at the end. */
    private long directory;
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

    Listing(CairnNames fs, Path path, long directory) {
        this.fs = fs;
        this.path = path;
        this.directory = directory;
    }

    @Override
    public synchronized boolean hasNext() throws IOException {
        while (ready.isEmpty() && directory != 0) {
            byte[] page = Native.nextEntries(directory);
            IOException failed = page == null ? Errors.of(path) : null;
            if (page == null || page.length == 0) {
                Native.closeDirectory(directory);
                directory = 0;
            }
            if (failed != null) {
                throw failed;
            }
            for (Record.Entry entry : Record.entries(page)) {
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
