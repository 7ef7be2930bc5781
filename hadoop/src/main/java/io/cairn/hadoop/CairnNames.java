package io.cairn.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.permission.FsPermission;

/** Operations on names: making, removing, renaming, listing, symbolic links. */
abstract class CairnNames extends CairnBase {
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

    boolean makeDirectories(Path path, int mode) throws IOException {
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
    static int mode(int mode, boolean last) {
        return last ? mode : mode | 0300;
    }

    void requireDirectory(Volumes.Place place, Path at, Path wanted, Errors.Failure failure) throws IOException {
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
        // Most often it is a file: then nobody has to be asked what it is.
        if (Native.change(place.volume, place.path, Native.REMOVE_FILE, 0) >= 0) {
            return true;
        }
        Errors.Failure refused = Errors.last();
        if (refused.is(Errors.ENOENT)) {
            return false;
        }
        if (!refused.isAnyOf(Errors.EISDIR, Errors.EPERM, Errors.ENOTDIR)) {
            // It may be done, or be under way: what has the name by now is not removed instead.
            throw refused.of(path);
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
    boolean deleteRoot(Path path, boolean recursive) throws IOException {
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
        if (source.isRoot()) {
            return false;
        }
        boolean isWithin = source.name.equals(volumes.nameOf(to)) && !place(to).isRoot();
        if (isWithin && !from.equals(to) && !isBelow(to, from)) {
            // Most often nothing has the name: then nobody has to be asked what is there.
            if (Native.rename(source.volume, source.path, place(to).path, false) >= 0) {
                return true;
            }
            Errors.Failure refused = Errors.last();
            if (refused.is(Errors.ENOENT)) {
                return false;
            }
            if (!refused.isAnyOf(Errors.EEXIST, Errors.ENOTDIR, Errors.EISDIR, Errors.EINVAL)) {
                // It may be done, or be under way, and is not to be called undone.
                throw refused.of(from);
            }
        }
        Record.Metadata moved = find(source, from, false);
        if (moved == null) {
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

    static boolean isBelow(Path path, Path above) {
        for (Path at = path.getParent(); at != null; at = at.getParent()) {
            if (at.equals(above)) {
                return true;
            }
        }
        return false;
    }

    void requireOneVolume(Volumes.Place source, Volumes.Place target, Path from, Path to) throws IOException {
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

    static void checkReplaced(Record.Metadata moved, Record.Metadata there, Path to, boolean overwrite)
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
            return new Listing(this, path, place.volume, directory);
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
            return status(get(place(path), path), path, null);
        } catch (FileNotFoundException e) {
            // A link that leads nowhere is shown as what it is.
            return entry.kind == Record.Entry.SYMLINK ? linkStatus(path) : null;
        }
    }

    /** Null if it is gone. */
    FileStatus linkStatus(Path path) throws IOException {
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
        Path parent = path.getParent();
        Path target = found.isSymlink() ? target(place, path) : null;
        Path shown = FileSystem.areSymlinksEnabled() && parent != null ? new Path(followed(parent), path.getName()) : path;
        return status(found, shown, target == null ? null : makeQualified(new Path(parent, target)));
    }

    /** Most links that are followed, as by the servers. */
    private static final int LINKS_MAX = 40;

    @Override
    Path followed(Path path) throws IOException {
        Path at = path;
        for (int links = 0; links < LINKS_MAX; links++) {
            Path next = withoutFirstLink(at);
            if (next == null) {
                return at;
            }
            at = next;
        }
        return path;
    }

    /** Null: there is none in it. */
    private Path withoutFirstLink(Path path) throws IOException {
        List<Path> above = new ArrayList<>();
        for (Path at = path; at != null; at = at.getParent()) {
            above.add(at);
        }
        for (int i = above.size() - 1; i >= 0; i--) {
            Path at = above.get(i);
            Volumes.Place place = volumes.find(at);
            Record.Metadata found = place == null ? null : find(place, at, false);
            if (found != null && found.isSymlink()) {
                Path next = makeQualified(new Path(at.getParent(), target(place, at)));
                for (int below = i - 1; below >= 0; below--) {
                    next = new Path(next, above.get(below).getName());
                }
                return next;
            }
        }
        return null;
    }

    Path target(Volumes.Place place, Path path) throws IOException {
        byte[] says = Errors.check(Native.readLink(place.volume, place.path), path);
        return Links.toHadoop(volumes, place.name, new String(says, StandardCharsets.UTF_8));
    }

    @Override
    public Path getLinkTarget(Path given) throws IOException {
        Path path = absolute(given);
        return target(place(path), path);
    }
}
