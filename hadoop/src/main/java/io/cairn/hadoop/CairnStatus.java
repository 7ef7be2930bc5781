package io.cairn.hadoop;

import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/** What is known of a file, with which file of which contents it is. */
class CairnStatus extends FileStatus {
    private static final long serialVersionUID = 1;
    /** Hadoop knows tags of contents from 3.3.2 on. */
    private static final boolean TAGS = tagsAreKnown();
    private final long inode;
    private final long version;
    /** Not there in another process. */
    private final transient CairnBase fs;
    /** Null: nobody asked. */
    private Boolean acl;

    CairnStatus(Record.Metadata found, CairnBase fs, Path path, Path link) {
        super(found.isDirectory() ? 0 : found.size, found.isDirectory(), found.isDirectory() ? 0 : found.copies,
                found.isDirectory() ? 0 : fs.blockSize(), Math.floorDiv(found.modifiedNs, 1_000_000L),
                Math.floorDiv(found.accessedNs, 1_000_000L), new FsPermission((short) (found.mode & 01777)),
                Names.user(found.uid), Names.group(found.gid), link, path);
        this.fs = fs;
        inode = found.inode;
        version = found.version;
    }

    private static boolean tagsAreKnown() {
        try {
            Class.forName("org.apache.hadoop.fs.EtagSource", false, CairnStatus.class.getClassLoader());
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    static FileStatus of(Record.Metadata found, CairnBase fs, Path path, Path link) {
        return TAGS && found.isFile() ? Tagged.with(found, fs, path, link) : new CairnStatus(found, fs, path, link);
    }

    static LocatedFileStatus located(FileStatus status, BlockLocation[] places) {
        if (!(status instanceof CairnStatus)) {
            return new LocatedFileStatus(status, places);
        }
        CairnStatus own = (CairnStatus) status;
        return TAGS && own.isFile() ? TaggedLocated.with(own, places) : new Located(own, places);
    }

    /** Asked when somebody wants to know it: a listing does not tell it, and most who list do not ask. */
    @Override
    public boolean hasAcl() {
        if (acl == null) {
            acl = fs != null && fs.hasAcl(getPath(), isDirectory());
        }
        return acl;
    }

    @Override
    public String toString() {
        return "CairnStatus{path=" + getPath() + "; isDirectory=" + isDirectory() + "; length=" + getLen()
                + "; replication=" + getReplication() + "; modification_time=" + getModificationTime() + "; owner="
                + getOwner() + "; group=" + getGroup() + "; permission=" + getPermission() + "; tag=" + tag() + "}";
    }

    long inode() {
        return inode;
    }

    long version() {
        return version;
    }

    /** Changes with the contents, and stays when the file is renamed. */
    String tag() {
        return Long.toHexString(inode) + "-" + Long.toHexString(version);
    }

    /** A class of its own, which is not loaded by a Hadoop without the interface: nobody else may name it, even to verify. */
    private static final class Tagged extends CairnStatus implements EtagSource {
        private static final long serialVersionUID = 1;

        Tagged(Record.Metadata found, CairnBase fs, Path path, Path link) {
            super(found, fs, path, link);
        }

        static CairnStatus with(Record.Metadata found, CairnBase fs, Path path, Path link) {
            return new Tagged(found, fs, path, link);
        }

        @Override
        public String getEtag() {
            return tag();
        }
    }

    /** With the machines that have the bytes. */
    private static class Located extends LocatedFileStatus {
        private static final long serialVersionUID = 1;
        private final CairnStatus of;

        Located(CairnStatus of, BlockLocation[] places) {
            super(of.getLen(), of.isDirectory(), of.getReplication(), of.getBlockSize(), of.getModificationTime(),
                    of.getAccessTime(), of.getPermission(), of.getOwner(), of.getGroup(), null, of.getPath(), places);
            this.of = of;
        }

        @Override
        public boolean hasAcl() {
            // While the class above is made, it is not there yet.
            return of != null && of.hasAcl();
        }

        String tag() {
            return of.tag();
        }

        @Override
        public String toString() {
            return of + " with places";
        }
    }

    private static final class TaggedLocated extends Located implements EtagSource {
        private static final long serialVersionUID = 1;

        TaggedLocated(CairnStatus of, BlockLocation[] places) {
            super(of, places);
        }

        static Located with(CairnStatus of, BlockLocation[] places) {
            return new TaggedLocated(of, places);
        }

        @Override
        public String getEtag() {
            return tag();
        }
    }
}
