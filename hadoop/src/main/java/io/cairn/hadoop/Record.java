package io.cairn.hadoop;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** Answers of native calls that have several values; crates/jni/src/record.rs writes them. */
final class Record {
    /** What is known of a file or directory. */
    static final class Metadata {
        final long inode;
        final long size;
        final long version;
        final long accessedNs;
        final long modifiedNs;
        final int mode;
        final int links;
        final int uid;
        final int gid;
        final int copies;

        Metadata(ByteBuffer from) {
            inode = from.getLong();
            size = from.getLong();
            version = from.getLong();
            accessedNs = from.getLong();
            modifiedNs = from.getLong();
            mode = from.getInt();
            links = from.getInt();
            uid = from.getInt();
            gid = from.getInt();
            copies = from.getInt();
            from.getInt();
        }

        boolean isDirectory() {
            return (mode & 0170000) == 0040000;
        }

        boolean isFile() {
            return (mode & 0170000) == 0100000;
        }

        boolean isSymlink() {
            return (mode & 0170000) == 0120000;
        }
    }

    /** An entry of a directory. */
    static final class Entry {
        static final int SYMLINK = 2;
        final String name;
        final int kind;
        /** Null for who may not search the directory. */
        final Metadata metadata;

        Entry(ByteBuffer from) {
            int length = Short.toUnsignedInt(from.getShort());
            kind = from.get();
            metadata = from.get() != 0 ? new Metadata(from) : null;
            name = text(from, length);
        }
    }

    /** A part of a directory. */
    static final class Page {
        final List<Entry> entries = new ArrayList<>();
        /** Where the next part begins; null at the end. */
        final byte[] next;

        Page(byte[] bytes) {
            ByteBuffer from = of(bytes);
            int length = from.getInt();
            next = length < 0 ? null : new byte[length];
            if (next != null) {
                from.get(next);
            }
            while (from.hasRemaining()) {
                entries.add(new Entry(from));
            }
        }
    }

    /** A part of a file and the machines that have it. */
    static final class Place {
        final long offset;
        final long length;
        final String[] names;
        final String[] addresses;
        final String[] racks;

        Place(ByteBuffer from) {
            offset = from.getLong();
            length = from.getLong();
            int hosts = from.getInt();
            names = new String[hosts];
            addresses = new String[hosts];
            racks = new String[hosts];
            for (int i = 0; i < hosts; i++) {
                names[i] = shortText(from);
                addresses[i] = shortText(from);
                racks[i] = shortText(from);
            }
        }
    }

    private Record() {
    }

    static ByteBuffer of(byte[] bytes) {
        return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    static Metadata metadata(byte[] bytes) {
        return new Metadata(of(bytes));
    }

    static List<Place> places(byte[] bytes) {
        ByteBuffer from = of(bytes);
        int number = from.getInt();
        List<Place> places = new ArrayList<>();
        for (int i = 0; i < number; i++) {
            places.add(new Place(from));
        }
        return places;
    }

    /** Texts that end with a zero byte each. */
    static List<String> names(byte[] bytes) {
        List<String> names = new ArrayList<>();
        int begin = 0;
        for (int i = 0; i < bytes.length; i++) {
            if (bytes[i] == 0) {
                names.add(new String(bytes, begin, i - begin, StandardCharsets.UTF_8));
                begin = i + 1;
            }
        }
        return names;
    }

    static String shortText(ByteBuffer from) {
        return text(from, Short.toUnsignedInt(from.getShort()));
    }

    private static String text(ByteBuffer from, int length) {
        String text = new String(from.array(), from.arrayOffset() + from.position(), length, StandardCharsets.UTF_8);
        from.position(from.position() + length);
        return text;
    }
}
