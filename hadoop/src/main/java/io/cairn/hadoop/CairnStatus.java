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

    CairnStatus(Record.Metadata found, long blockSize, Path path, Path link) {
        super(found.isDirectory() ? 0 : found.size, found.isDirectory(), found.isDirectory() ? 0 : found.copies,
                found.isDirectory() ? 0 : blockSize, Math.floorDiv(found.modifiedNs, 1_000_000L),
                Math.floorDiv(found.accessedNs, 1_000_000L), new FsPermission((short) (found.mode & 01777)),
                Names.user(found.uid), Names.group(found.gid), link, path);
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

    static FileStatus of(Record.Metadata found, long blockSize, Path path, Path link) {
        return TAGS && found.isFile() ? new Tagged(found, blockSize, path, link)
                : new CairnStatus(found, blockSize, path, link);
    }

    static LocatedFileStatus located(FileStatus status, BlockLocation[] places) {
        return TAGS && status instanceof Tagged ? new Located((Tagged) status, places)
                : new LocatedFileStatus(status, places);
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

    /** A class of its own, which is not loaded by a Hadoop without the interface. */
    private static final class Tagged extends CairnStatus implements EtagSource {
        private static final long serialVersionUID = 1;

        Tagged(Record.Metadata found, long blockSize, Path path, Path link) {
            super(found, blockSize, path, link);
        }

        @Override
        public String getEtag() {
            return tag();
        }
    }

    private static final class Located extends LocatedFileStatus implements EtagSource {
        private static final long serialVersionUID = 1;
        private final String tag;

        Located(Tagged of, BlockLocation[] places) {
            super(of, places);
            tag = of.tag();
        }

        @Override
        public String getEtag() {
            return tag;
        }
    }
}
