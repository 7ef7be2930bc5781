package io.cairn.hadoop;

import java.lang.ref.PhantomReference;
import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Files whose streams nobody has any more, and nobody closed: they are closed when the next file is opened. Streams that are written are not among
 * them: their file system has them until it is closed.
 */
final class Leftovers {
    private static final ReferenceQueue<Object> GONE = new ReferenceQueue<>();
    private static final Set<Leftover> ALL = ConcurrentHashMap.newKeySet();

    /** The number of an open file, as long as its stream is there. */
    static final class Leftover extends PhantomReference<Object> {
        private final long file;

        private Leftover(Object stream, long file) {
            super(stream, GONE);
            this.file = file;
        }

        /** The stream is closed. */
        void forget() {
            ALL.remove(this);
            clear();
        }
    }

    private Leftovers() {
    }

    static Leftover watch(Object stream, long file) {
        for (Reference<?> gone = GONE.poll(); gone != null; gone = GONE.poll()) {
            Leftover left = (Leftover) gone;
            if (ALL.remove(left)) {
                // If it fails, it was closed with its file system.
                Native.close(left.file);
            }
        }
        Leftover watched = new Leftover(stream, file);
        ALL.add(watched);
        return watched;
    }

    /** Streams that were neither closed nor found to be gone. */
    static int count() {
        return ALL.size();
    }
}
