package io.cairn.hadoop;

import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.util.ShutdownHookManager;

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
    /** Connections of FileContexts, which nobody closes: programs make one for each of their users or jobs. */
    private static final Map<String, Connection> SHARED = new ConcurrentHashMap<>();
    private static final AtomicBoolean AT_END = new AtomicBoolean();
    private static final int SHUTDOWN_PRIORITY = FileSystem.SHUTDOWN_HOOK_PRIORITY / 2;

    private final boolean shared;
    private final Map<String, Connection> connections = new HashMap<>();
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

    /** @param shared with all others that have the same cluster, user and options; such ones are not closed */
    Volumes(URI uri, Configuration conf, boolean shared) throws IOException {
        this.shared = shared;
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

    /** Whoever needs another volume does not wait for this one. */
    private long connect(String name, Path path) throws IOException {
        Connection connection;
        synchronized (this) {
            checkOpen(path);
            connection = connections.computeIfAbsent(name, unknown -> shared ? sharedConnection(key(name)) : new Connection());
        }
        long volume = connection.get(() -> connectAnew(name, path));
        synchronized (this) {
            checkOpen(path);
        }
        return volume;
    }

    private static Connection sharedConnection(String key) {
        if (AT_END.compareAndSet(false, true)) {
            // Behind what FileContexts and file systems do at the end.
            ShutdownHookManager.get().addShutdownHook(() -> SHARED.values().forEach(Volumes::disconnect), SHUTDOWN_PRIORITY);
        }
        return SHARED.computeIfAbsent(key, unknown -> new Connection());
    }

    /** Nobody is there to be told that it failed. */
    private static void disconnect(Connection connection) {
        long volume = connection.end();
        if (volume != 0) {
            Native.disconnect(volume);
        }
    }

    private void checkOpen(Path path) throws IOException {
        if (closed) {
            throw new IOException("Filesystem closed: " + path + "; get it anew");
        }
    }

    /** What two that share a connection have in common. */
    private String key(String name) {
        String user;
        try {
            user = UserGroupInformation.getCurrentUser().getUserName();
        } catch (IOException e) {
            user = System.getProperty("user.name");
        }
        StringBuilder key = new StringBuilder(user).append('\n').append(name).append('\n')
                .append(cluster == null ? System.getenv("CAIRN_CLUSTER") : new String(cluster, StandardCharsets.UTF_8));
        for (String option : new String[] {CairnFileSystem.READ_ONLY, CairnFileSystem.CLOSE_VISIBLE, CairnFileSystem.TIMEOUT,
            CairnFileSystem.CONNECT_TIMEOUT, CairnFileSystem.MEMORY_MAX, CairnFileSystem.RACK}) {
            key.append('\n').append(conf.getTrimmed(option, ""));
        }
        Token<?> token = keys.handedOn();
        return key.append('\n').append(token == null ? "" : Keys.digest(token)).toString();
    }

    private long connectAnew(String name, Path path) throws IOException {
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
        return volume;
    }

    /** Writes everything out. All are closed, even if some fail; one that is just being connected is closed when that is done. */
    void close() throws IOException {
        Map<String, Connection> all;
        synchronized (this) {
            closed = true;
            all = new HashMap<>(connections);
            connections.clear();
        }
        IOException failed = null;
        for (Map.Entry<String, Connection> one : all.entrySet()) {
            long volume = shared ? 0 : one.getValue().end();
            if (volume != 0 && Native.disconnect(volume) < 0) {
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
