package io.cairn.hadoop;

import java.io.Closeable;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
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
import org.apache.hadoop.fs.MD5MD5CRC32GzipFileChecksum;
import org.apache.hadoop.fs.MultipartUploaderBuilder;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathHandle;
import org.apache.hadoop.fs.QuotaUsage;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.io.MD5Hash;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.util.DataChecksum;
import org.apache.hadoop.util.Progressable;

/**
 * Files of Cairn for Hadoop: {@code cairn://host:port/volume/path}, or {@code cairn://volume@host:port/path}, where the root of the volume is
 * that of all paths. What operations answer and throw is what HDFS does; who acts is the user of the process.
 */
public class CairnFileSystem extends CairnAttributes {
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
    private static final int READ_BUFFER_DEFAULT = 128 << 10;
    private static final int WRITE_BUFFER_DEFAULT = 256 << 10;
    private static final int BUFFER_MIN = 512;
    private static final int BUFFER_MAX = 64 << 20;
    private static final String CHECKSUMS = "dfs.checksum.combine.mode";
    static {
        Recoverable.useWherePossible();
    }

    private int readBuffer;
    private int writeBuffer;
    private boolean compositeChecksums;
    /** Streams that are written: what they have gathered goes out when the file system is closed. */
    private final Set<CairnOutputStream> open = ConcurrentHashMap.newKeySet();
    private final Map<String, Short> copies = new ConcurrentHashMap<>();

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        readBuffer = bounded(conf.getLongBytes(READ_BUFFER, READ_BUFFER_DEFAULT));
        writeBuffer = bounded(conf.getLongBytes(WRITE_BUFFER, WRITE_BUFFER_DEFAULT));
        compositeChecksums = "COMPOSITE_CRC".equals(conf.getTrimmed(CHECKSUMS));
    }

    private static int bounded(long size) {
        return (int) Math.min(BUFFER_MAX, Math.max(BUFFER_MIN, size));
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

    private FSDataOutputStream make(Path given, int mode, boolean overwrite, boolean parents) throws IOException {
        Path path = absolute(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(path);
        if (place.isRoot()) {
            throw new FileAlreadyExistsException(path + ": it is a directory; name a file in it");
        }
        int flags = Native.O_WRONLY | Native.O_CREAT | (overwrite ? Native.O_TRUNC | Native.REPLACE : Native.O_EXCL);
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
        return new FSDataOutputStream(written(file, path, 0, place.volume), null);
    }

    private CairnOutputStream written(long file, Path path, long position, long madeIn) {
        CairnOutputStream stream = new CairnOutputStream(file, path, position, madeIn, writeBuffer, statistics, open::remove);
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
        Record.Metadata there = Record.metadata(found);
        if (open.stream().anyMatch(stream -> stream.writesAtOffsets(place.volume, there.inode))) {
            Native.close(file);
            throw new IOException(path + ": this process still writes the file, and would write over what is appended; close that stream first");
        }
        return new FSDataOutputStream(written(file, path, there.size, 0), null, there.size);
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
                .erasureCodingPolicy("").build();
    }

    @Override
    public Path createSnapshot(Path given, String name) throws IOException {
        throw snapshots("create " + name + " " + new String(place(absolute(given)).path, StandardCharsets.UTF_8));
    }

    @Override
    public void renameSnapshot(Path given, String name, String to) throws IOException {
        throw snapshots("rename " + name + " " + to);
    }

    @Override
    public void deleteSnapshot(Path given, String name) throws IOException {
        throw snapshots("delete " + name);
    }

    private static UnsupportedOperationException snapshots(String how) {
        return new UnsupportedOperationException("snapshots are made and removed by the command cairn fs snapshot " + how);
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
            CairnInputStream stream = (CairnInputStream) in.getWrappedStream();
            if (length == 0 || stream.isEmpty()) {
                // Of nothing HDFS has this one, whatever it is told to combine.
                return new MD5MD5CRC32GzipFileChecksum(0, 0, MD5Hash.digest(new byte[32]));
            }
            return new CompositeCrcFileChecksum(stream.crc32c(length), DataChecksum.Type.CRC32C, 512);
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

    /**
     * Shuts out whoever has the file open for writing: once this returns, no hflush, hsync or close of theirs succeeds any more, and what one of
     * them reported as done before is there. True: nobody has to be waited for.
     */
    public boolean recoverLease(Path given) throws IOException {
        Path path = requireFile(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(path);
        List<CairnOutputStream> own = new ArrayList<>(open);
        own.removeIf(stream -> !stream.path().equals(path));
        byte[] mark = bytes(UUID.randomUUID().toString());
        Errors.check(Native.fence(place.volume, place.path, mark), path);
        own.forEach(CairnOutputStream::shutOut);
        return true;
    }

    /** False while somebody writes the file through this object. Of others it is not known: no server keeps it, and nobody has to wait for them. */
    public boolean isFileClosed(Path given) throws IOException {
        Path path = requireFile(given);
        return open.stream().noneMatch(stream -> stream.path().equals(path) && !stream.isShutOut());
    }

    /** The texts are those by which programs know HDFS. */
    private Path requireFile(Path given) throws IOException {
        Path path = absolute(given);
        FileStatus found;
        try {
            found = getFileStatus(path);
        } catch (FileNotFoundException e) {
            throw (IOException) new FileNotFoundException(path + ": File does not exist; check the path").initCause(e);
        }
        if (found.isDirectory()) {
            throw new FileNotFoundException(path + ": Path is not a file; name one");
        }
        return path;
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

    /** Of tokens that carry the key of who submits a job to its tasks; null where no key is shown. */
    @Override
    public String getCanonicalServiceName() {
        return volumes.keys().serviceName();
    }

    @Override
    public Token<?> getDelegationToken(String renewer) throws IOException {
        return volumes.keys().token(renewer);
    }

    /** Files that are open for writing are closed too, as HDFS does. */
    @Override
    public void close() throws IOException {
        IOException failed = Closing.all(open);
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
