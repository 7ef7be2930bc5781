package io.cairn.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;

/** What all operations need: paths, their places in volumes, and what is known of what is there. */
abstract class CairnBase extends FileSystem {
    private static final long BLOCK_SIZE_DEFAULT = 128L << 20;
    URI uri;
    Volumes volumes;
    Path workingDirectory;
    FsPermission umask;
    long blockSize;

    @Override
    public String getScheme() {
        return CairnFileSystem.SCHEME;
    }

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setConf(conf);
        String authority = name.getAuthority();
        uri = URI.create(CairnFileSystem.SCHEME + "://" + (authority == null ? "" : authority) + (authority == null ? "/" : ""));
        volumes = new Volumes(name, conf, sharesVolumes());
        umask = FsPermission.getUMask(conf);
        blockSize = conf.getLongBytes(CairnFileSystem.BLOCK_SIZE, BLOCK_SIZE_DEFAULT);
        workingDirectory = getHomeDirectory();
    }

    /** Whether connections outlive this object, and are those of others too. */
    boolean sharesVolumes() {
        return false;
    }

    @Override
    public URI getUri() {
        return uri;
    }

    @Override
    public Path getHomeDirectory() {
        return makeQualified(new Path(home(volumes.usual())));
    }

    String home(String volume) {
        String user;
        try {
            user = org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName();
        } catch (IOException e) {
            user = System.getProperty("user.name");
        }
        return new Path(volumes.root(volume), "user/" + user).toUri().getPath();
    }

    @Override
    public Path getWorkingDirectory() {
        return workingDirectory;
    }

    @Override
    public void setWorkingDirectory(Path directory) {
        workingDirectory = makeQualified(fixRelativePart(directory));
    }

    /** The absolute path. */
    Path absolute(Path path) {
        checkPath(path);
        return makeQualified(fixRelativePart(path));
    }

    /** A place in a volume; the path above all volumes is refused. */
    Volumes.Place place(Path path) throws IOException {
        Volumes.Place place = volumes.find(path);
        if (place == null) {
            throw new AccessControlException(path + ": volumes are made and removed by an administrator; "
                    + "name a volume, such as /" + volumes.usual() + "/path (cairn admin volume create makes one)");
        }
        return place;
    }

    static FsPermission permission(int mode) {
        return new FsPermission((short) (mode & 01777));
    }

    FileStatus status(Record.Metadata found, Path path, Path link) {
        return CairnStatus.of(found, this, path, link);
    }

    /** Null if there is nothing. */
    Record.Metadata find(Volumes.Place place, Path path, boolean follow) throws IOException {
        byte[] found = Native.stat(place.volume, place.path, follow);
        if (found != null) {
            return Record.metadata(found);
        }
        Errors.Failure failure = Errors.last();
        if (failure.is(Errors.ENOENT)) {
            return null;
        }
        // A file above it: nothing is there either, as HDFS has it.
        if (failure.is(Errors.ENOTDIR)) {
            return null;
        }
        throw failure.of(path);
    }

    Record.Metadata get(Volumes.Place place, Path path) throws IOException {
        byte[] found = Native.stat(place.volume, place.path, true);
        if (found != null) {
            return Record.metadata(found);
        }
        Errors.Failure failure = Errors.last();
        if (failure.is(Errors.ENOTDIR)) {
            throw new FileNotFoundException(failure.text(path));
        }
        throw failure.of(path);
    }

    @Override
    public FileStatus getFileStatus(Path given) throws IOException {
        Path path = absolute(given);
        statistics.incrementReadOps(1);
        Volumes.Place place = volumes.find(path);
        if (place == null) {
            return aboveVolumes(path);
        }
        Record.Metadata found = get(place, path);
        return status(found, FileSystem.areSymlinksEnabled() ? followed(path) : path, null);
    }

    /** The path that links lead to: Hadoop, where it knows links, has it in the status of what is there. */
    abstract Path followed(Path path) throws IOException;

    FileStatus aboveVolumes(Path path) throws IOException {
        volumes.connectUsual();
        return new FileStatus(0, true, 0, 0, 0, 0, permission(0555), "root", "root", null, path);
    }

    int masked(FsPermission permission, FsPermission usual) {
        return (permission == null ? usual : permission).applyUMask(umask).toShort();
    }

    @Override
    @SuppressWarnings("deprecation")
    public long getDefaultBlockSize() {
        return blockSize;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    long blockSize() {
        return blockSize;
    }

    /** Whether anything but the permission is known to say who may do what. */
    abstract boolean hasAcl(Path path, boolean directory);
}
