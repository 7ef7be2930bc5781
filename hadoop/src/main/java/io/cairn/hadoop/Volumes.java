package io.cairn.hadoop;

import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.token.Token;

/**
 * Volumes of a cluster by the first name of paths, connected when they are first used. Of {@code cairn://volume@host:port/} there is one,
 * whose root is that of all paths.
 */
final class Volumes {
    private final byte[] cluster;
    /** The only one; null: the first name of a path says which. */
    private final String only;
    private final String usual;
    private final Configuration conf;
    private final Keys keys;
    private final Map<String, Long> connected = new HashMap<>();
    private boolean closed;

    /** A place in a volume. */
    static final class Place {
        final long volume;
        final String name;
        final byte[] path;

        Place(long volume, String name, byte[] path) {
            this.volume = volume;
            this.name = name;
            this.path = path;
        }

        boolean isRoot() {
            return path.length == 1;
        }
    }

    Volumes(URI uri, Configuration conf) throws IOException {
        String authority = uri.getAuthority() != null ? uri.getAuthority() : usualAuthority(conf);
        int at = authority == null ? -1 : authority.lastIndexOf('@');
        only = at > 0 ? authority.substring(0, at) : null;
        String managers = authority == null ? conf.getTrimmed(CairnFileSystem.CLUSTER, "") : authority.substring(at + 1);
        String environment = System.getenv("CAIRN_CLUSTER");
        if (managers.isEmpty() && (environment == null || environment.isEmpty())) {
            throw new IOException(uri + ": no cluster is named; write cairn://host:port/volume/path, or set "
                    + CairnFileSystem.CLUSTER);
        }
        cluster = managers.isEmpty() ? null : managers.getBytes(StandardCharsets.UTF_8);
        usual = only != null ? only : conf.getTrimmed(CairnFileSystem.VOLUME, "default");
        this.conf = conf;
        keys = new Keys(cluster);
    }

    Keys keys() {
        return keys;
    }

    /** That of the usual file system, if it is one of Cairn. */
    private static String usualAuthority(Configuration conf) {
        boolean named = !conf.getTrimmed(CairnFileSystem.CLUSTER, "").isEmpty();
        URI usual = named ? null : FileSystem.getDefaultUri(conf);
        return usual != null && CairnFileSystem.SCHEME.equals(usual.getScheme()) ? usual.getAuthority() : null;
    }

    /** Whether the first name of a path is that of a volume. */
    boolean areNamed() {
        return only == null;
    }

    /** The volume of who names none. */
    String usual() {
        return usual;
    }

    /** The path of a volume's root. */
    Path root(String name) {
        return areNamed() ? new Path("/" + name) : new Path("/");
    }

    /** Null: the path above all volumes. */
    String nameOf(Path absolute) {
        if (!areNamed()) {
            return only;
        }
        String path = absolute.toUri().getPath();
        if (path.length() <= 1) {
            return null;
        }
        int end = path.indexOf('/', 1);
        return end < 0 ? path.substring(1) : path.substring(1, end);
    }

    /** Null: the path above all volumes. */
    Place find(Path absolute) throws IOException {
        String name = nameOf(absolute);
        if (name == null) {
            return null;
        }
        String path = absolute.toUri().getPath();
        String inside = areNamed() ? path.substring(1 + name.length()) : path;
        return new Place(connect(name, absolute), name, (inside.isEmpty() ? "/" : inside).getBytes(StandardCharsets.UTF_8));
    }

    long connectUsual() throws IOException {
        return connect(usual, root(usual));
    }

    List<String> all() throws IOException {
        return Record.names(Errors.check(Native.volumes(connectUsual()), new Path("/")));
    }

    private synchronized long connect(String name, Path path) throws IOException {
        if (closed) {
            throw new IOException("Filesystem closed: " + path + "; get it anew");
        }
        Long known = connected.get(name);
        if (known != null) {
            return known;
        }
        int flags = (conf.getBoolean(CairnFileSystem.READ_ONLY, false) ? Native.READ_ONLY : 0)
                | (conf.getBoolean(CairnFileSystem.CLOSE_VISIBLE, false) ? Native.CLOSE_VISIBLE : 0);
        long timeout = conf.getTimeDuration(CairnFileSystem.TIMEOUT, 60_000, TimeUnit.MILLISECONDS);
        long connectTimeout = conf.getTimeDuration(CairnFileSystem.CONNECT_TIMEOUT, 30_000, TimeUnit.MILLISECONDS);
        long memory = conf.getLongBytes(CairnFileSystem.MEMORY_MAX, 256L << 20);
        byte[] rack = conf.getTrimmed(CairnFileSystem.RACK, "").getBytes(StandardCharsets.UTF_8);
        Token<?> token = keys.handedOn();
        long volume = Native.connect(cluster, name.getBytes(StandardCharsets.UTF_8), rack, flags, timeout, connectTimeout,
                memory, token == null ? null : token.getPassword(), token == null ? null : Keys.from(token));
        if (volume == 0) {
            throw Errors.of(path);
        }
        connected.put(name, volume);
        return volume;
    }

    /** Writes everything out. All are closed, even if some fail. */
    void close() throws IOException {
        List<Map.Entry<String, Long>> all;
        synchronized (this) {
            closed = true;
            all = new ArrayList<>(connected.entrySet());
            connected.clear();
        }
        IOException failed = null;
        for (Map.Entry<String, Long> one : all) {
            if (Native.disconnect(one.getValue()) < 0) {
                IOException error = Errors.of(root(one.getKey()));
                if (failed == null) {
                    failed = error;
                } else {
                    failed.addSuppressed(error);
                }
            }
        }
        if (failed != null) {
            throw failed;
        }
    }
}
