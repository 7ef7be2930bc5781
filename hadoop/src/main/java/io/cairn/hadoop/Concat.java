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
            fill(file, joined, before);
            Record.Metadata now = stat(place, target);
            if (now.inode != before.inode || now.version != before.version) {
                throw new PathIOException(target.toString(), "it was changed while it was joined with others; try again");
            }
            Errors.check(Native.rename(place.volume, joined, place.path, true), target);
            renamed = true;
        } finally {
            if (!renamed) {
                Native.change(place.volume, joined, Native.REMOVE_FILE, 0);
            }
        }
        for (Path source : sources) {
            Volumes.Place of = volumes.find(source);
            Errors.check(Native.change(of.volume, of.path, Native.REMOVE_FILE, 0), source);
        }
    }

    private static Record.Metadata stat(Volumes.Place place, Path path) throws IOException {
        return Record.metadata(Errors.check(Native.stat(place.volume, place.path, true), path));
    }

    /** What the target is like. */
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
        Record.Metadata found = stat(place, target);
        requireFile(found, target);
        return found;
    }

    private static void requireFile(Record.Metadata found, Path path) throws IOException {
        if (!found.isFile()) {
            throw new FileNotFoundException(path + ": it is no file; name files");
        }
    }

    /** Bytes and attributes; closes the file. */
    private void fill(long file, byte[] joined, Record.Metadata like) throws IOException {
        boolean closed = false;
        try {
            append(file, target);
            for (Path source : sources) {
                append(file, source);
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
            byte[] key = name.getBytes(StandardCharsets.UTF_8);
            byte[] value = Errors.check(Native.getXattr(place.volume, place.path, key), target);
            Errors.check(Native.setXattr(place.volume, joined, key, value, 0), target);
        }
        int mode = like.mode & 07777;
        Errors.check(Native.setMetadata(place.volume, joined, mode, -1, -1, -1, Native.SAME, Native.SAME), target);
    }

    private void append(long file, Path path) throws IOException {
        Volumes.Place of = volumes.find(path);
        long source = Native.open(of.volume, of.path, Native.O_RDONLY, 0);
        if (source == 0) {
            throw Errors.of(path);
        }
        try {
            Errors.check(Native.appendFrom(file, source), path);
        } finally {
            Native.close(source);
        }
    }
}
