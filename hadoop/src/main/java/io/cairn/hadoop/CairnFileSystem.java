package io.cairn.hadoop;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.CompositeCrcFileChecksum;
import org.apache.hadoop.fs.ContentSummary;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.QuotaUsage;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclEntryScope;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.DataChecksum;
import org.apache.hadoop.util.Progressable;

/**
 * Files of Cairn for Hadoop: {@code cairn://host:port/volume/path}, or {@code cairn://volume@host:port/path}, where the root of the volume is
 * that of all paths. What operations answer and throw is what HDFS does; who acts is the user of the process.
 */
public class CairnFileSystem extends FileSystem {
    public static final String SCHEME = "cairn";
    /** Managers of {@code cairn:///}. */
    public static final String CLUSTER = "fs.cairn.cluster";
    /** Where home directories are. */
    public static final String VOLUME = "fs.cairn.volume";
    public static final String RACK = "fs.cairn.rack";
    public static final String TIMEOUT = "fs.cairn.timeout";
    public static final String CONNECT_TIMEOUT = "fs.cairn.connect.timeout";
    public static final String MEMORY_MAX = "fs.cairn.memory.max";
    public static final String READ_ONLY = "fs.cairn.read.only";
    public static final String CLOSE_VISIBLE = "fs.cairn.close.visible";
    public static final String BLOCK_SIZE = "fs.cairn.block.size";
    public static final String READ_BUFFER = "fs.cairn.read.buffer";
    public static final String WRITE_BUFFER = "fs.cairn.write.buffer";
    private static final long BLOCK_SIZE_DEFAULT = 128L << 20;
    private static final int READ_BUFFER_DEFAULT = 128 << 10;
    private static final int WRITE_BUFFER_DEFAULT = 256 << 10;
    private static final int BUFFER_MIN = 512;
    private static final String CHECKSUMS = "dfs.checksum.combine.mode";

    private URI uri;
    private Volumes volumes;
    private Path workingDirectory;
    private FsPermission umask;
    private long blockSize;
    private int readBuffer;
    private int writeBuffer;
    private boolean compositeChecksums;
    /** Streams that are written: what they have gathered goes out when the file system is closed. */
    private final Set<CairnOutputStream> open = ConcurrentHashMap.newKeySet();
    private final Map<String, Short> copies = new ConcurrentHashMap<>();

    @Override
    public String getScheme() {
        return SCHEME;
    }

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        setConf(conf);
        String authority = name.getAuthority();
        uri = URI.create(SCHEME + "://" + (authority == null ? "" : authority) + (authority == null ? "/" : ""));
        volumes = new Volumes(name, conf);
        umask = FsPermission.getUMask(conf);
        blockSize = conf.getLongBytes(BLOCK_SIZE, BLOCK_SIZE_DEFAULT);
        readBuffer = (int) Math.max(BUFFER_MIN, conf.getLongBytes(READ_BUFFER, READ_BUFFER_DEFAULT));
        writeBuffer = (int) Math.max(BUFFER_MIN, conf.getLongBytes(WRITE_BUFFER, WRITE_BUFFER_DEFAULT));
        compositeChecksums = "COMPOSITE_CRC".equals(conf.getTrimmed(CHECKSUMS));
        workingDirectory = getHomeDirectory();
    }

    @Override
    public URI getUri() {
        return uri;
    }

    @Override
    public Path getHomeDirectory() {
        return makeQualified(new Path(home(volumes.usual())));
    }

    private String home(String volume) {
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
    private Path absolute(Path path) {
        checkPath(path);
        return makeQualified(fixRelativePart(path));
    }

    /** A place in a volume; the path above all volumes is refused. */
    private Volumes.Place place(Path path) throws IOException {
        Volumes.Place place = volumes.find(path);
        if (place == null) {
            throw new AccessControlException(path + ": volumes are made and removed by an administrator; "
                    + "name a volume, such as /" + volumes.usual() + "/path (cairn admin volume create makes one)");
        }
        return place;
    }

    private static FsPermission permission(int mode) {
        return new FsPermission((short) (mode & 01777));
    }

    private FileStatus status(Record.Metadata found, Path path, Path link) {
        return CairnStatus.of(found, this, path, link);
    }

    /** Null if there is nothing. */
    private Record.Metadata find(Volumes.Place place, Path path, boolean follow) throws IOException {
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

    private Record.Metadata get(Volumes.Place place, Path path) throws IOException {
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
        return status(get(place, path), path, null);
    }

    private FileStatus aboveVolumes(Path path) throws IOException {
        volumes.connectUsual();
        return new FileStatus(0, true, 0, 0, 0, 0, permission(0555), "root", "root", null, path);
    }

    @Override
    public FSDataInputStream open(Path given, int bufferSize) throws IOException {
        Path path = absolute(given);
        statistics.incrementReadOps(1);
        Volumes.Place place = volumes.find(path);
        long file = place == null ? 0 : Native.open(place.volume, place.path, Native.O_RDONLY, 0);
        if (place == null) {
            throw new FileNotFoundException(path + ": it is a directory; name a file");
        }
        if (file == 0) {
            Errors.Failure failure = Errors.last();
            if (failure.is(Errors.EISDIR) || failure.is(Errors.ENOTDIR)) {
                throw new FileNotFoundException(failure.text(path));
            }
            throw failure.of(path);
        }
        try {
            return new FSDataInputStream(new CairnInputStream(file, path, readBuffer, statistics));
        } catch (IOException e) {
            Native.close(file);
            throw e;
        }
    }

    @Override
    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int bufferSize,
            short replication, long blockSize, Progressable progress) throws IOException {
        return make(path, masked(permission, FsPermission.getFileDefault()), overwrite, true);
    }

    @Override
    public FSDataOutputStream createNonRecursive(Path path, FsPermission permission, EnumSet<CreateFlag> flags,
            int bufferSize, short replication, long blockSize, Progressable progress) throws IOException {
        if (flags.contains(CreateFlag.APPEND)) {
            return append(path, bufferSize, progress);
        }
        boolean overwrite = flags.contains(CreateFlag.OVERWRITE);
        return make(path, masked(permission, FsPermission.getFileDefault()), overwrite, false);
    }

    /** FileContext has taken its mask off already. */
    @Override
    @SuppressWarnings("deprecation")
    protected FSDataOutputStream primitiveCreate(Path path, FsPermission permission, EnumSet<CreateFlag> flags,
            int bufferSize, short replication, long blockSize, Progressable progress, Options.ChecksumOpt checksums)
            throws IOException {
        CreateFlag.validate(path, exists(path), flags);
        if (flags.contains(CreateFlag.APPEND) && exists(path)) {
            return append(path, bufferSize, progress);
        }
        return make(path, permission.toShort(), flags.contains(CreateFlag.OVERWRITE), true);
    }

    private int masked(FsPermission permission, FsPermission usual) {
        return (permission == null ? usual : permission).applyUMask(umask).toShort();
    }

    private FSDataOutputStream make(Path given, int mode, boolean overwrite, boolean parents) throws IOException {
        Path path = absolute(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(path);
        if (place.isRoot()) {
            throw new FileAlreadyExistsException(path + ": it is a directory; name a file in it");
        }
        int flags = Native.O_WRONLY | Native.O_CREAT | (overwrite ? Native.O_TRUNC : Native.O_EXCL);
        long file = Native.open(place.volume, place.path, flags, mode);
        if (file == 0 && parents) {
            Errors.Failure failure = Errors.last();
            if (failure.is(Errors.ENOENT) && path.getParent() != null) {
                makeDirectories(path.getParent(), masked(null, FsPermission.getDirDefault()));
                file = Native.open(place.volume, place.path, flags, mode);
            } else {
                throw notMade(failure, path);
            }
        }
        if (file == 0) {
            throw notMade(Errors.last(), path);
        }
        return new FSDataOutputStream(written(file, path, 0), null);
    }

    private CairnOutputStream written(long file, Path path, long position) {
        CairnOutputStream stream = new CairnOutputStream(file, path, position, writeBuffer, statistics, open::remove);
        open.add(stream);
        return stream;
    }

    private IOException notMade(Errors.Failure failure, Path path) {
        return failure.is(Errors.EISDIR) ? new FileAlreadyExistsException(failure.text(path)) : failure.of(path);
    }

    @Override
    public FSDataOutputStream append(Path given, int bufferSize, Progressable progress) throws IOException {
        Path path = absolute(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(path);
        long file = Native.open(place.volume, place.path, Native.O_WRONLY | Native.O_APPEND, 0);
        if (file == 0) {
            Errors.Failure failure = Errors.last();
            throw failure.is(Errors.EISDIR) ? new FileNotFoundException(failure.text(path)) : failure.of(path);
        }
        byte[] found = Native.statFile(file);
        if (found == null) {
            IOException error = Errors.of(path);
            Native.close(file);
            throw error;
        }
        long end = Record.metadata(found).size;
        return new FSDataOutputStream(written(file, path, end), null, end);
    }

    @Override
    public boolean mkdirs(Path given, FsPermission permission) throws IOException {
        return makeDirectories(absolute(given), masked(permission, FsPermission.getDirDefault()));
    }

    @Override
    @SuppressWarnings("deprecation")
    protected void primitiveMkdir(Path path, FsPermission permission, boolean parents) throws IOException {
        if (parents) {
            makeDirectories(absolute(path), permission.toShort());
            return;
        }
        Path own = absolute(path);
        Volumes.Place place = place(own);
        statistics.incrementWriteOps(1);
        Errors.check(Native.change(place.volume, place.path, Native.MAKE_DIRECTORY, permission.toShort()), own);
    }

    private boolean makeDirectories(Path path, int mode) throws IOException {
        statistics.incrementWriteOps(1);
        List<Path> missing = new ArrayList<>();
        Path at = path;
        // From below upwards: most of the way is there.
        while (true) {
            Volumes.Place place = volumes.find(at);
            if (place == null || place.isRoot()) {
                if (place != null) {
                    get(place, at);
                }
                break;
            }
            if (Native.change(place.volume, place.path, Native.MAKE_DIRECTORY, mode(mode, at == path)) >= 0) {
                break;
            }
            Errors.Failure failure = Errors.last();
            if (failure.is(Errors.ENOENT)) {
                missing.add(at);
                at = at.getParent();
            } else if (failure.is(Errors.EEXIST) || failure.is(Errors.EACCES) || failure.is(Errors.EROFS)) {
                requireDirectory(place, at, path, failure);
                break;
            } else {
                throw failure.of(at);
            }
        }
        for (int i = missing.size() - 1; i >= 0; i--) {
            Path made = missing.get(i);
            Volumes.Place place = place(made);
            if (Native.change(place.volume, place.path, Native.MAKE_DIRECTORY, mode(mode, made == path)) < 0) {
                Errors.Failure failure = Errors.last();
                // Somebody else makes the same.
                if (!failure.is(Errors.EEXIST)) {
                    throw failure.of(made);
                }
                requireDirectory(place, made, path, failure);
            }
        }
        return true;
    }

    /** Whoever makes what is missing above gets to the end. */
    private static int mode(int mode, boolean last) {
        return last ? mode : mode | 0300;
    }

    private void requireDirectory(Volumes.Place place, Path at, Path wanted, Errors.Failure failure) throws IOException {
        Record.Metadata found = find(place, at, true);
        if (found == null) {
            throw failure.of(at);
        }
        if (!found.isDirectory()) {
            String text = at + ": it is no directory; choose another name, or remove it first";
            throw at.equals(wanted) ? new FileAlreadyExistsException(text) : new ParentNotDirectoryException(text);
        }
    }

    @Override
    public boolean delete(Path given, boolean recursive) throws IOException {
        Path path = absolute(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = volumes.find(path);
        if (place == null || place.isRoot()) {
            return deleteRoot(path, recursive);
        }
        Record.Metadata found = find(place, path, false);
        if (found == null) {
            return false;
        }
        int how = !found.isDirectory() ? Native.REMOVE_FILE : recursive ? Native.REMOVE_TREE : Native.REMOVE_DIRECTORY;
        if (Native.change(place.volume, place.path, how, 0) < 0) {
            Errors.Failure failure = Errors.last();
            if (failure.is(Errors.ENOENT)) {
                return false;
            }
            throw failure.of(path);
        }
        return true;
    }

    /** Roots stay. As of HDFS: what is in them stays too. */
    private boolean deleteRoot(Path path, boolean recursive) throws IOException {
        if (!recursive && listStatusIterator(path).hasNext()) {
            Errors.Failure failure = new Errors.Failure(Errors.ENOTEMPTY, "it is not empty", "remove what is in it first");
            throw failure.of(path);
        }
        return false;
    }

    @Override
    public boolean rename(Path givenFrom, Path givenTo) throws IOException {
        Path from = absolute(givenFrom);
        Path to = absolute(givenTo);
        statistics.incrementWriteOps(1);
        Volumes.Place source = place(from);
        Record.Metadata moved = find(source, from, false);
        if (moved == null || source.isRoot()) {
            return false;
        }
        Volumes.Place target = volumes.find(to);
        Record.Metadata there = target == null ? null : find(target, to, true);
        if (target == null || there != null && there.isDirectory() && !from.equals(to)) {
            to = new Path(to, from.getName());
            target = place(to);
            there = find(target, to, false);
        }
        if (from.equals(to)) {
            return !moved.isDirectory();
        }
        if (there != null) {
            return false;
        }
        requireOneVolume(source, target, from, to);
        if (isBelow(to, from)) {
            return false;
        }
        if (Native.rename(source.volume, source.path, target.path, false) >= 0) {
            return true;
        }
        Errors.Failure failure = Errors.last();
        if (failure.is(Errors.ENOENT) || failure.is(Errors.EEXIST) || failure.is(Errors.EINVAL)) {
            return false;
        }
        throw failure.of(from);
    }

    private static boolean isBelow(Path path, Path above) {
        for (Path at = path.getParent(); at != null; at = at.getParent()) {
            if (at.equals(above)) {
                return true;
            }
        }
        return false;
    }

    private void requireOneVolume(Volumes.Place source, Volumes.Place target, Path from, Path to) throws IOException {
        if (!source.name.equals(target.name)) {
            throw new PathIOException(from.toString(), "it cannot be moved to another volume, as " + to
                    + " would be; copy it, then remove the source");
        }
    }

    @Override
    @SuppressWarnings("deprecation")
    protected void rename(Path from, Path to, Options.Rename... options) throws IOException {
        boolean overwrite = false;
        for (Options.Rename option : options) {
            overwrite |= option == Options.Rename.OVERWRITE;
        }
        renameStrictly(from, to, overwrite);
    }

    /** Either all is done or nothing, and an exception says why; a file, or an empty directory, is replaced in the same step. */
    void renameStrictly(Path givenFrom, Path givenTo, boolean overwrite) throws IOException {
        Path from = absolute(givenFrom);
        Path to = absolute(givenTo);
        statistics.incrementWriteOps(1);
        Volumes.Place source = place(from);
        Volumes.Place target = place(to);
        Record.Metadata moved = find(source, from, false);
        if (moved == null) {
            throw new FileNotFoundException(from + ": there is nothing to rename; check the path");
        }
        if (source.isRoot() || target.isRoot()) {
            throw new PathIOException(from.toString(), "the root of a volume is neither renamed nor replaced; name what is in it");
        }
        requireOneVolume(source, target, from, to);
        if (from.equals(to)) {
            throw new FileAlreadyExistsException(from + ": it would be renamed to itself; choose another name");
        }
        if (isBelow(to, from)) {
            throw new PathIOException(from.toString(), "it cannot be moved below itself, to " + to + "; choose another place");
        }
        Record.Metadata there = find(target, to, false);
        if (there != null) {
            Record.Metadata meant = moved.isSymlink() ? find(source, from, true) : null;
            if (meant != null && meant.inode == there.inode) {
                throw new FileAlreadyExistsException(to + ": the link " + from + " leads to it; choose another name");
            }
            checkReplaced(moved, there, to, overwrite);
        }
        if (Native.rename(source.volume, source.path, target.path, overwrite) < 0) {
            Errors.Failure failure = Errors.last();
            throw failure.of(failure.is(Errors.ENOENT) || failure.is(Errors.ENOTDIR) ? to.getParent() : to);
        }
    }

    private static void checkReplaced(Record.Metadata moved, Record.Metadata there, Path to, boolean overwrite)
            throws IOException {
        if (moved.isDirectory() != there.isDirectory()) {
            throw new PathIOException(to.toString(), "a file and a directory do not replace each other; remove it first");
        }
        if (!overwrite) {
            throw new FileAlreadyExistsException(to + ": it exists; choose another name, or remove it first");
        }
    }

    @Override
    public FileStatus[] listStatus(Path given) throws IOException {
        List<FileStatus> all = new ArrayList<>();
        RemoteIterator<FileStatus> listed = listStatusIterator(given);
        while (listed.hasNext()) {
            all.add(listed.next());
        }
        // As HDFS has them.
        all.sort((one, other) -> one.getPath().getName().compareTo(other.getPath().getName()));
        return all.toArray(new FileStatus[0]);
    }

    /** In parts, as the servers hand them out: a directory of any size takes little memory. Their order is the servers'. */
    @Override
    public RemoteIterator<FileStatus> listStatusIterator(Path given) throws IOException {
        Path path = absolute(given);
        statistics.incrementReadOps(1);
        Volumes.Place place = volumes.find(path);
        if (place == null) {
            List<FileStatus> all = new ArrayList<>();
            for (String name : volumes.all()) {
                all.add(getFileStatus(new Path(path, name)));
            }
            return new Listing.Known(all);
        }
        long directory = Native.openDirectory(place.volume, place.path);
        if (directory != 0) {
            return new Listing(this, path, directory);
        }
        Errors.Failure failure = Errors.last();
        if (!failure.is(Errors.ENOTDIR)) {
            throw failure.of(path);
        }
        List<FileStatus> single = new ArrayList<>();
        single.add(getFileStatus(path));
        return new Listing.Known(single);
    }

    /** What a listing shows of an entry; null if it is gone. */
    FileStatus listed(Record.Entry entry, Path directory) throws IOException {
        Path path = new Path(directory, new Path(null, null, entry.name));
        if (entry.metadata != null && entry.kind != Record.Entry.SYMLINK) {
            return status(entry.metadata, path, null);
        }
        try {
            return getFileStatus(path);
        } catch (FileNotFoundException e) {
            // A link that leads nowhere is shown as what it is.
            return entry.kind == Record.Entry.SYMLINK ? linkStatus(path) : null;
        }
    }

    /** Null if it is gone. */
    private FileStatus linkStatus(Path path) throws IOException {
        try {
            return getFileLinkStatus(path);
        } catch (FileNotFoundException e) {
            return null;
        }
    }

    @Override
    protected RemoteIterator<LocatedFileStatus> listLocatedStatus(Path given, PathFilter filter) throws IOException {
        RemoteIterator<FileStatus> listed = listStatusIterator(given);
        return new RemoteIterator<LocatedFileStatus>() {
            private FileStatus ready;

            @Override
            public boolean hasNext() throws IOException {
                while (ready == null && listed.hasNext()) {
                    FileStatus next = listed.next();
                    ready = filter.accept(next.getPath()) ? next : null;
                }
                return ready != null;
            }

            @Override
            public LocatedFileStatus next() throws IOException {
                if (!hasNext()) {
                    throw new NoSuchElementException("no more entries of " + given);
                }
                FileStatus status = ready;
                ready = null;
                BlockLocation[] places = status.isFile() ? getFileBlockLocations(status, 0, status.getLen()) : null;
                return CairnStatus.located(status, places);
            }
        };
    }

    @Override
    public boolean supportsSymlinks() {
        return true;
    }

    @Override
    public void createSymlink(Path target, Path givenLink, boolean createParent) throws IOException {
        if (!FileSystem.areSymlinksEnabled()) {
            throw new UnsupportedOperationException("Symlinks not supported");
        }
        Path link = absolute(givenLink);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(link);
        byte[] says = bytes(Links.toVolume(volumes, place.name, uri, link, target));
        if (Native.symlink(place.volume, says, place.path) >= 0) {
            return;
        }
        Errors.Failure failure = Errors.last();
        if (!failure.is(Errors.ENOENT) || !createParent || link.getParent() == null) {
            throw failure.of(link);
        }
        makeDirectories(link.getParent(), masked(null, FsPermission.getDirDefault()));
        Errors.check(Native.symlink(place.volume, says, place.path), link);
    }

    @Override
    public FileStatus getFileLinkStatus(Path given) throws IOException {
        Path path = absolute(given);
        statistics.incrementReadOps(1);
        Volumes.Place place = volumes.find(path);
        if (place == null) {
            return aboveVolumes(path);
        }
        Record.Metadata found = find(place, path, false);
        if (found == null) {
            throw new FileNotFoundException(path + ": no such file or directory; check the path");
        }
        Path target = found.isSymlink() ? target(place, path) : null;
        return status(found, path, target == null ? null : makeQualified(new Path(path.getParent(), target)));
    }

    private Path target(Volumes.Place place, Path path) throws IOException {
        byte[] says = Errors.check(Native.readLink(place.volume, place.path), path);
        return Links.toHadoop(volumes, place.name, new String(says, StandardCharsets.UTF_8));
    }

    @Override
    public Path getLinkTarget(Path given) throws IOException {
        Path path = absolute(given);
        return target(place(path), path);
    }

    @Override
    protected PathHandle createPathHandle(FileStatus status, Options.HandleOpt... options) {
        if (!(status instanceof CairnStatus) || !status.isFile()) {
            throw new IllegalArgumentException(status.getPath() + ": handles are of files, by a status of this file system");
        }
        checkPath(status.getPath());
        CairnStatus own = (CairnStatus) status;
        return new CairnPathHandle(absolute(own.getPath()).toUri().getPath(), own.inode(), own.version(), options);
    }

    @Override
    public FSDataInputStream open(PathHandle given, int bufferSize) throws IOException {
        CairnPathHandle handle = given instanceof CairnPathHandle ? (CairnPathHandle) given : new CairnPathHandle(given.bytes());
        Path path = absolute(new Path(null, null, handle.path));
        statistics.incrementReadOps(1);
        Volumes.Place place = place(path);
        if (!handle.mayMove()) {
            Record.Metadata there = find(place, path, true);
            if (there == null || there.inode != handle.inode) {
                throw new InvalidPathHandleException(path + ": another file has the name, or none; make a handle anew");
            }
        }
        long file = Native.openInode(place.volume, handle.inode);
        if (file == 0) {
            Errors.Failure failure = Errors.last();
            if (failure.is(Errors.ENOENT) || failure.is(Errors.ESTALE)) {
                throw new InvalidPathHandleException(path + ": the file was removed; make a handle anew");
            }
            throw failure.of(path);
        }
        try {
            byte[] found = Errors.check(Native.statFile(file), path);
            if (!handle.mayChange() && Record.metadata(found).version != handle.version) {
                throw new InvalidPathHandleException(path + ": its contents were changed; make a handle anew");
            }
            return new FSDataInputStream(new CairnInputStream(file, path, readBuffer, statistics));
        } catch (IOException e) {
            Native.close(file);
            throw e;
        }
    }

    /** Parts are files, which are joined at the end. Hadoop from 3.3.1 on calls it. */
    @Override
    public MultipartUploaderBuilder createMultipartUploader(Path base) throws IOException {
        return Uploads.of(this, base);
    }

    @Override
    public void setPermission(Path given, FsPermission permission) throws IOException {
        set(given, permission.toShort() & 01777, -1, -1, -1, Native.SAME, Native.SAME);
    }

    @Override
    public void setOwner(Path given, String user, String group) throws IOException {
        set(given, -1, Names.id(user, false), Names.id(group, true), -1, Native.SAME, Native.SAME);
    }

    /** −1 leaves a time as it is. */
    @Override
    public void setTimes(Path given, long modified, long accessed) throws IOException {
        long accessedNs = accessed < 0 ? Native.SAME : Math.multiplyExact(accessed, 1_000_000L);
        long modifiedNs = modified < 0 ? Native.SAME : Math.multiplyExact(modified, 1_000_000L);
        set(given, -1, -1, -1, -1, accessedNs, modifiedNs);
    }

    private void set(Path given, int mode, long uid, long gid, long size, long accessed, long modified)
            throws IOException {
        Path path = absolute(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(path);
        Errors.check(Native.setMetadata(place.volume, place.path, mode, uid, gid, size, accessed, modified), path);
    }

    /** Done when it returns. */
    @Override
    public boolean truncate(Path given, long length) throws IOException {
        Path path = absolute(given);
        FileStatus there = getFileStatus(path);
        if (there.isDirectory()) {
            throw new FileNotFoundException(path + ": it is a directory; name a file");
        }
        if (length < 0 || length > there.getLen()) {
            throw new IllegalArgumentException(path + ": it has " + there.getLen() + " bytes and cannot be cut to " + length);
        }
        set(path, -1, -1, -1, length, Native.SAME, Native.SAME);
        return true;
    }

    /** Of what is made in a volume, unless its directory says something else. */
    @Override
    public short getDefaultReplication(Path given) {
        try {
            Volumes.Place place = volumes.find(absolute(given));
            if (place == null) {
                return 3;
            }
            Short known = copies.get(place.name);
            if (known == null) {
                byte[] root = Native.stat(place.volume, new byte[] {'/'}, true);
                known = root == null ? 3 : (short) Record.metadata(root).copies;
                copies.put(place.name, known);
            }
            return known;
        } catch (IOException e) {
            return 3;
        }
    }

    /** Directories have layouts, files no number of their own: only what is so already can be set. */
    @Override
    public boolean setReplication(Path given, short replication) throws IOException {
        FileStatus there = getFileStatus(given);
        return !there.isDirectory() && there.getReplication() == replication;
    }

    @Override
    @SuppressWarnings("deprecation")
    public long getDefaultBlockSize() {
        return blockSize;
    }

    @Override
    public FsStatus getStatus(Path given) throws IOException {
        Volumes.Place place = given == null ? null : volumes.find(absolute(given));
        long volume = place == null ? volumes.connectUsual() : place.volume;
        java.nio.ByteBuffer space = Record.of(Errors.check(Native.space(volume), new Path("/")));
        long all = space.getLong();
        long free = space.getLong();
        return new FsStatus(all, all - free, free);
    }

    @Override
    public BlockLocation[] getFileBlockLocations(FileStatus file, long start, long length) throws IOException {
        if (file == null) {
            return null;
        }
        if (start < 0 || length < 0) {
            throw new IllegalArgumentException(file.getPath() + ": the range begins or ends before the file");
        }
        if (file.isDirectory() || file.getLen() <= start) {
            return new BlockLocation[0];
        }
        Path path = absolute(file.getPath());
        Volumes.Place place = place(path);
        statistics.incrementReadOps(1);
        byte[] told = Errors.check(Native.places(place.volume, place.path, start, length), path);
        return BlockPlaces.cover(Record.places(told), start, Math.min(file.getLen() - start, length));
    }

    @Override
    public void access(Path given, FsAction mode) throws IOException {
        Path path = absolute(given);
        statistics.incrementReadOps(1);
        Volumes.Place place = volumes.find(path);
        if (place != null) {
            Errors.check(Native.change(place.volume, place.path, Native.ACCESS, mode.ordinal()), path);
        } else if (mode.implies(FsAction.WRITE)) {
            place(path);
        }
    }

    @Override
    public ContentSummary getContentSummary(Path given) throws IOException {
        Path path = absolute(given);
        FileStatus top = getFileStatus(path);
        long[] sums = new long[4];
        List<Path> ahead = new ArrayList<>();
        count(top, sums, ahead);
        while (!ahead.isEmpty()) {
            RemoteIterator<FileStatus> listed = listStatusIterator(ahead.remove(ahead.size() - 1));
            while (listed.hasNext()) {
                count(listed.next(), sums, ahead);
            }
        }
        long[] quota = top.isDirectory() ? quota(path) : null;
        return new ContentSummary.Builder().length(sums[0]).fileCount(sums[1]).directoryCount(sums[2])
                .spaceConsumed(sums[3]).quota(quota == null ? -1 : quota[1]).spaceQuota(quota == null ? -1 : quota[0])
                .build();
    }

    private static void count(FileStatus one, long[] sums, List<Path> ahead) {
        if (one.isDirectory()) {
            sums[2]++;
            ahead.add(one.getPath());
        } else {
            sums[0] += one.getLen();
            sums[1]++;
            sums[3] += one.getLen() * one.getReplication();
        }
    }

    /** Limits of bytes and of files, −1 without one, and what is used of them; null without a quota. */
    private long[] quota(Path path) throws IOException {
        Volumes.Place place = volumes.find(path);
        byte[] told = place == null ? new byte[0] : Errors.check(Native.quota(place.volume, place.path), path);
        if (told.length == 0) {
            return null;
        }
        java.nio.ByteBuffer from = Record.of(told);
        return new long[] {from.getLong(), from.getLong(), from.getLong(), from.getLong()};
    }

    @Override
    public QuotaUsage getQuotaUsage(Path given) throws IOException {
        long[] quota = quota(absolute(given));
        if (quota == null) {
            return getContentSummary(given);
        }
        return new QuotaUsage.Builder().spaceQuota(quota[0]).quota(quota[1]).spaceConsumed(quota[2])
                .fileAndDirectoryCount(quota[3] + 1).build();
    }

    /** One sum of all bytes, which compares with HDFS where both are told to ({@code dfs.checksum.combine.mode}); it reads the file. */
    @Override
    public FileChecksum getFileChecksum(Path given, long length) throws IOException {
        if (!compositeChecksums) {
            return null;
        }
        try (FSDataInputStream in = open(given, 0)) {
            return new CompositeCrcFileChecksum(((CairnInputStream) in.getWrappedStream()).crc32c(length),
                    DataChecksum.Type.CRC32C, 512);
        }
    }

    @Override
    public FileChecksum getFileChecksum(Path given) throws IOException {
        return getFileChecksum(given, Long.MAX_VALUE);
    }

    /** The target's bytes, then those of the sources, get the target's name in one step; then the sources are removed. */
    @Override
    public void concat(Path givenTarget, Path[] givenSources) throws IOException {
        Path target = absolute(givenTarget);
        Path[] sources = new Path[givenSources.length];
        for (int i = 0; i < sources.length; i++) {
            sources[i] = absolute(givenSources[i]);
        }
        statistics.incrementWriteOps(1);
        new Concat(volumes, target, sources).run();
    }

    @Override
    public void setXAttr(Path given, String name, byte[] value, EnumSet<XAttrSetFlag> flags) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        boolean create = flags.contains(XAttrSetFlag.CREATE);
        boolean replace = flags.contains(XAttrSetFlag.REPLACE);
        int how = create == replace ? 0 : create ? 1 : 2;
        byte[] bytes = value == null ? new byte[0] : value;
        Errors.check(Native.setXattr(place.volume, place.path, bytes(name), bytes, how), path);
    }

    @Override
    public byte[] getXAttr(Path given, String name) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        return Errors.check(Native.getXattr(place.volume, place.path, bytes(name)), path);
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path given) throws IOException {
        return getXAttrs(given, listXAttrs(given));
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path given, List<String> names) throws IOException {
        Map<String, byte[]> all = new HashMap<>();
        for (String name : names) {
            all.put(name, getXAttr(given, name));
        }
        return all;
    }

    /** Without those that are ACLs. */
    @Override
    public List<String> listXAttrs(Path given) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        List<String> names = Record.names(Errors.check(Native.listXattrs(place.volume, place.path), path));
        names.removeIf(name -> name.startsWith("system."));
        return names;
    }

    @Override
    public void removeXAttr(Path given, String name) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        Errors.check(Native.removeXattr(place.volume, place.path, bytes(name)), path);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** The entries of an ACL, or those of the mode where there is none; nothing for the default ACL. */
    private List<AclEntry> acl(Path path, AclEntryScope scope) throws IOException {
        Volumes.Place place = place(path);
        String name = scope == AclEntryScope.ACCESS ? Acls.ACCESS : Acls.DEFAULT;
        byte[] value = Native.getXattr(place.volume, place.path, bytes(name));
        if (value != null) {
            return Acls.decode(value, scope);
        }
        Errors.Failure failure = Errors.last();
        if (!failure.is(Errors.ENODATA)) {
            throw failure.of(path);
        }
        return scope == AclEntryScope.ACCESS ? Acls.ofMode(get(place, path).mode, scope) : new ArrayList<>();
    }

    private void setAcl(Path path, AclEntryScope scope, List<AclEntry> entries) throws IOException {
        Volumes.Place place = place(path);
        byte[] name = bytes(scope == AclEntryScope.ACCESS ? Acls.ACCESS : Acls.DEFAULT);
        if (!entries.isEmpty()) {
            Errors.check(Native.setXattr(place.volume, place.path, name, Acls.encode(entries), 0), path);
        } else if (Native.removeXattr(place.volume, place.path, name) < 0) {
            Errors.Failure failure = Errors.last();
            if (!failure.is(Errors.ENODATA)) {
                throw failure.of(path);
            }
        }
    }

    private static boolean hasMask(List<AclEntry> entries) {
        return entries.stream().anyMatch(entry -> entry.getType() == org.apache.hadoop.fs.permission.AclEntryType.MASK);
    }

    @Override
    public void modifyAclEntries(Path given, List<AclEntry> changes) throws IOException {
        Path path = absolute(given);
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> own = Acls.of(changes, scope);
            if (!own.isEmpty()) {
                List<AclEntry> merged = Acls.merge(acl(path, scope), own);
                setAcl(path, scope, Acls.complete(merged, acl(path, AclEntryScope.ACCESS), scope, hasMask(own)));
            }
        }
    }

    @Override
    public void removeAclEntries(Path given, List<AclEntry> gone) throws IOException {
        Path path = absolute(given);
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> own = Acls.of(gone, scope);
            if (!own.isEmpty()) {
                List<AclEntry> left = Acls.without(acl(path, scope), own);
                setAcl(path, scope, Acls.complete(left, acl(path, AclEntryScope.ACCESS), scope, false));
            }
        }
    }

    @Override
    public void removeDefaultAcl(Path given) throws IOException {
        setAcl(absolute(given), AclEntryScope.DEFAULT, new ArrayList<>());
    }

    @Override
    public void removeAcl(Path given) throws IOException {
        Path path = absolute(given);
        List<AclEntry> entries = acl(path, AclEntryScope.ACCESS);
        int mode = 0;
        for (AclEntry entry : entries) {
            if (entry.getName() == null && entry.getType() != org.apache.hadoop.fs.permission.AclEntryType.MASK) {
                mode |= entry.getPermission().ordinal() << (6 - 3 * Math.min(2, entry.getType() == org.apache.hadoop.fs.permission.AclEntryType.OTHER ? 2 : entry.getType().ordinal()));
            }
        }
        int kept = get(place(path), path).mode & 01000;
        setAcl(path, AclEntryScope.ACCESS, new ArrayList<>());
        setPermission(path, permission(kept | mode));
        if (getFileStatus(path).isDirectory()) {
            removeDefaultAcl(path);
        }
    }

    @Override
    public void setAcl(Path given, List<AclEntry> entries) throws IOException {
        Path path = absolute(given);
        List<AclEntry> base = acl(path, AclEntryScope.ACCESS);
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> own = Acls.of(entries, scope);
            if (!own.isEmpty()) {
                setAcl(path, scope, Acls.complete(own, base, scope, hasMask(own)));
            } else if (scope == AclEntryScope.DEFAULT && getFileStatus(path).isDirectory()) {
                removeDefaultAcl(path);
            }
        }
    }

    long blockSize() {
        return blockSize;
    }

    /** Whether anything but the permission says who may do what. */
    boolean hasAcl(Path path, boolean directory) {
        try {
            return hasMask(acl(path, AclEntryScope.ACCESS)) || directory && !acl(path, AclEntryScope.DEFAULT).isEmpty();
        } catch (FileNotFoundException e) {
            return false;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Without what the permission says: owner, mask and others, and the group where nobody has a name. */
    @Override
    public AclStatus getAclStatus(Path given) throws IOException {
        FileStatus status = getFileStatus(given);
        Path path = absolute(given);
        List<AclEntry> shown = new ArrayList<>();
        List<AclEntry> entries = acl(path, AclEntryScope.ACCESS);
        if (hasMask(entries)) {
            for (AclEntry entry : entries) {
                boolean group = entry.getType() == org.apache.hadoop.fs.permission.AclEntryType.GROUP;
                if (entry.getName() != null || group) {
                    shown.add(entry);
                }
            }
        }
        if (status.isDirectory()) {
            shown.addAll(acl(path, AclEntryScope.DEFAULT));
        }
        return new AclStatus.Builder().owner(status.getOwner()).group(status.getGroup())
                .stickyBit(status.getPermission().getStickyBit()).setPermission(status.getPermission())
                .addEntries(shown).build();
    }

    /** In the volume of the path: nothing is moved from one volume to another. */
    @Override
    public Path getTrashRoot(Path given) {
        String name = volumes.nameOf(absolute(given));
        return makeQualified(new Path(home(name == null ? volumes.usual() : name), ".Trash"));
    }

    /** The root of the path's volume, within which it may be renamed. Hadoop from 3.4 on calls it. */
    public Path getEnclosingRoot(Path given) throws IOException {
        String name = volumes.nameOf(absolute(given));
        return makeQualified(name == null ? new Path("/") : volumes.root(name));
    }

    @Override
    public boolean hasPathCapability(Path given, String capability) throws IOException {
        absolute(given);
        switch (capability.toLowerCase(java.util.Locale.ENGLISH)) {
            case CommonPathCapabilities.FS_ACLS:
            case CommonPathCapabilities.FS_APPEND:
            case CommonPathCapabilities.FS_CONCAT:
            case CommonPathCapabilities.FS_PERMISSIONS:
            case CommonPathCapabilities.FS_TRUNCATE:
            case CommonPathCapabilities.FS_XATTRS:
            case CommonPathCapabilities.FS_PATHHANDLES:
            case CommonPathCapabilities.FS_MULTIPART_UPLOADER:
            case CommonPathCapabilities.ETAGS_AVAILABLE:
            case CommonPathCapabilities.ETAGS_PRESERVED_IN_RENAME:
                return true;
            case CommonPathCapabilities.FS_SYMLINKS:
                return FileSystem.areSymlinksEnabled();
            case CommonPathCapabilities.FS_CHECKSUMS:
                return compositeChecksums;
            default:
                return super.hasPathCapability(given, capability);
        }
    }

    @Override
    public String getCanonicalServiceName() {
        // There are no tokens: who acts is the user of the process.
        return null;
    }

    /** Files that are open for writing are closed too, as HDFS does. */
    @Override
    public void close() throws IOException {
        IOException failed = null;
        for (CairnOutputStream stream : open) {
            failed = closed(stream, failed);
        }
        // Removes what was to be removed at the end.
        failed = closed(super::close, failed);
        failed = closed(volumes == null ? () -> { } : volumes::close, failed);
        if (failed != null) {
            throw failed;
        }
    }

    private static IOException closed(Closeable one, IOException before) {
        try {
            one.close();
        } catch (IOException e) {
            if (before == null) {
                return e;
            }
            before.addSuppressed(e);
        }
        return before;
    }
}
