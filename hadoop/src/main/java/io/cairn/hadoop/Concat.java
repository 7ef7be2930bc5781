package io.cairn.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

/**
 * Joins files. A new file is made of the bytes of all, most of them shared and not copied, and takes the target's name when it is durable: whoever
 * opens the target finds it as before or whole. If it fails before that, nothing has changed; after it, sources may be left, and nothing is lost.
 *
 * Who writes the target or a source through the jar is shut out first, as by recoverLease: what he was told to be done is in the bytes that are
 * joined, and nothing is acknowledged to him that is not. A source that others changed meanwhile stays.
 */
final class Concat {
    private final Volumes volumes;
    private final Path target;
    private final Path[] sources;
    private Volumes.Place place;

    Concat(Volumes volumes, Path target, Path[] sources) {
        this.volumes = volumes;
        this.target = target;
        this.sources = sources;
    }

    void run() throws IOException {
        Record.Metadata before = check();
        byte[] joined = (new String(place.path, 0, place.path.length - target.getName().getBytes(StandardCharsets.UTF_8).length,
                StandardCharsets.UTF_8) + "._concat_" + UUID.randomUUID()).getBytes(StandardCharsets.UTF_8);
        boolean renamed = false;
        long file = Native.open(place.volume, joined, Native.O_WRONLY | Native.O_CREAT | Native.O_EXCL, 0600);
        if (file == 0) {
            throw Errors.of(target);
        }
        try {
            Record.Metadata[] read = fill(file, joined, before);
            requireSame(read[0], place, target);
            Errors.check(Native.rename(place.volume, joined, place.path, true), target);
            renamed = true;
            for (int i = 0; i < sources.length; i++) {
                Volumes.Place of = volumes.find(sources[i]);
                requireSame(read[1 + i], of, sources[i]);
                Errors.check(Native.change(of.volume, of.path, Native.REMOVE_FILE, 0), sources[i]);
            }
        } finally {
            if (!renamed) {
                Native.change(place.volume, joined, Native.REMOVE_FILE, 0);
            }
        }
    }

    /** Whoever does not write through the jar may have changed it, or put another file in its place. */
    private static void requireSame(Record.Metadata read, Volumes.Place place, Path path) throws IOException {
        Record.Metadata now = stat(place, path);
        if (now.inode != read.inode || now.version != read.version || now.size != read.size) {
            throw new PathIOException(path.toString(), "it was changed while it was joined with others, and is left as it is; "
                    + "see whether its bytes are wanted, and try again");
        }
    }

    private static void shutOut(Volumes.Place place, Path path) throws IOException {
        byte[] mark = UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8);
        Errors.check(Native.fence(place.volume, place.path, mark), path);
    }

    private static Record.Metadata stat(Volumes.Place place, Path path) throws IOException {
        return Record.metadata(Errors.check(Native.stat(place.volume, place.path, true), path));
    }

    /** Shuts out who writes them. What the target is like. */
    private Record.Metadata check() throws IOException {
        if (sources.length == 0) {
            throw new IllegalArgumentException(target + ": no files to join with it were named");
        }
        place = volumes.find(target);
        if (place == null || place.isRoot()) {
            throw new FileNotFoundException(target + ": it is a directory; name a file");
        }
        Set<Path> seen = new HashSet<>();
        seen.add(target);
        for (Path source : sources) {
            Volumes.Place of = volumes.find(source);
            if (!seen.add(source)) {
                throw new PathIOException(source.toString(), "it is named twice; name each file once");
            }
            if (of == null || !of.name.equals(place.name)) {
                throw new PathIOException(source.toString(), "it is in another volume than " + target + "; copy it");
            }
            requireFile(stat(of, source), source);
        }
        requireFile(stat(place, target), target);
        // All of them are what they should be: from here on something is done.
        shutOut(place, target);
        for (Path source : sources) {
            shutOut(volumes.find(source), source);
        }
        return stat(place, target);
    }

    private static void requireFile(Record.Metadata found, Path path) throws IOException {
        if (!found.isFile()) {
            throw new FileNotFoundException(path + ": it is no file; name files");
        }
    }

    /** Bytes and attributes; closes the file. What the target and the sources were when they were read. */
    private Record.Metadata[] fill(long file, byte[] joined, Record.Metadata like) throws IOException {
        Record.Metadata[] read = new Record.Metadata[1 + sources.length];
        boolean closed = false;
        try {
            read[0] = append(file, target);
            for (int i = 0; i < sources.length; i++) {
                read[1 + i] = append(file, sources[i]);
            }
            closed = true;
            Errors.check(Native.close(file), target);
        } finally {
            if (!closed) {
                Native.close(file);
            }
        }
        byte[] names = Errors.check(Native.listXattrs(place.volume, place.path), target);
        Errors.check(Native.setMetadata(place.volume, joined, -1, like.uid, like.gid, -1, Native.SAME, Native.SAME), target);
        for (String name : Record.names(names)) {
            if (name.equals(CairnAttributes.RECOVERED)) {
                // Of the old file's writers.
                continue;
            }
            byte[] key = name.getBytes(StandardCharsets.UTF_8);
            byte[] value = Errors.check(Native.getXattr(place.volume, place.path, key), target);
            Errors.check(Native.setXattr(place.volume, joined, key, value, 0), target);
        }
        int mode = like.mode & 07777;
        Errors.check(Native.setMetadata(place.volume, joined, mode, -1, -1, -1, Native.SAME, Native.SAME), target);
        return read;
    }

    private Record.Metadata append(long file, Path path) throws IOException {
        Volumes.Place of = volumes.find(path);
        long source = Native.open(of.volume, of.path, Native.O_RDONLY, 0);
        if (source == 0) {
            throw Errors.of(path);
        }
        try {
            long done = Errors.check(Native.appendFrom(file, source), path);
            Record.Metadata read = Record.metadata(Errors.check(Native.statFile(source), path));
            if (read.size != done) {
                throw new PathIOException(path.toString(), "it was changed while it was joined with others; try again");
            }
            return read;
        } finally {
            Native.close(source);
        }
    }
}
